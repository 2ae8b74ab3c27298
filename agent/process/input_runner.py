"""Runs, reloads and drains a leaf's inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct, field

from agent.base.logs import listed
from agent.base.metrics import Metrics
from agent.base.supervisor import Switch, restart_failing
from agent.base.wait import timeout
from agent.config import Config
from agent.jetstream import JetStreamError
from agent.leaf.intake import Input, Intake, Level, QuickIntake
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.publish.core_intake import CoreIntake, SwappableIntake
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.sender import Sender
from agent.leaf.state_file import StateError, StateFile
from agent.process.reload import Applied

if TYPE_CHECKING:
    from agent.leaf.rules.aggregates import RuleAggregates

_CANCEL_SECONDS: Final = 5.0
"""Time for a cancelled input to end."""

log = structlog.get_logger("leaf")


class _Entry(Struct):
    input: Input
    switch: Switch
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


def levels_of(config: Config) -> dict[str, Level]:
    """Return acknowledgement levels by input."""
    return {input_.name: input_.ack for input_ in config.input}


def lingers_of(config: Config) -> dict[str, float]:
    """Return set lingers by input."""
    return {input_.name: input_.linger for input_ in config.input if input_.linger is not None}


class InputSet:
    """Runs inputs on `intake`. Reloads change `levels` and `lingers` in place."""

    def __init__(
        self,
        config: Config,
        inputs: Iterable[Input],
        core: CoreIntake,
        levels: dict[str, Level],
        lingers: dict[str, float],
        metrics: Metrics,
    ) -> None:
        self._core, self._levels, self._lingers, self._metrics = core, levels, lingers, metrics
        self._patience = float(config.publish.drain)
        self._aggregates = aggregates_of(core, config, metrics)
        self.intake = SwappableIntake(with_rules(core, config, metrics, self._aggregates))
        self._entries = {input_.name: _Entry(input_, Switch()) for input_ in inputs}
        self._group: asyncio.TaskGroup | None = None
        self._stopped = False
        self._ended = asyncio.Event()
        self._storing: asyncio.Task[None] | None = None

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def wanted(self) -> list[str]:
        """Inputs that no command switched off."""
        return [name for name, entry in self._entries.items() if entry.switch.is_on]

    @property
    def switches(self) -> Mapping[str, Switch]:
        return {name: entry.switch for name, entry in self._entries.items()}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        return tasks if self._storing is None else [*tasks, self._storing]

    def begin(self, group: asyncio.TaskGroup) -> None:
        """Run all inputs in a group."""
        self._group = group
        for entry in self._entries.values():
            self._start(entry)
        self._store_aggregates()

    def stop(self) -> None:
        """End all inputs in order."""
        self._stopped = True
        self._ended.set()
        for entry in self._entries.values():
            entry.ended.set()

    async def apply(self, new: Applied) -> None:
        """Replace changed inputs."""
        switches = await self._end(new.change.end)
        self._levels.clear()
        self._levels.update(levels_of(new.config))
        self._lingers.clear()
        self._lingers.update(lingers_of(new.config))
        if "rule" in new.change.live:
            self._aggregates = self._aggregates or aggregates_of(self._core, new.config, self._metrics)
            self.intake.behind = with_rules(self._core, new.config, self._metrics, self._aggregates)
            self._store_aggregates()
        for input_ in new.inputs:
            entry = _Entry(input_, switches.get(input_.name) or Switch())
            self._entries[input_.name] = entry
            self._start(entry)

    async def _end(self, names: Iterable[str]) -> dict[str, Switch]:
        """End inputs, cancel slow ones, and return their switches. Raises `TimeoutError` for one that
        continues.
        """
        leaving = [self._entries[name] for name in names]
        for entry in leaving:
            entry.ended.set()
        if tasks := [entry.task for entry in leaving if entry.task is not None]:
            _, late = await asyncio.wait(tasks, timeout=self._patience)
            for task in late:
                log.error("input not ended in time; cancelled", input=task.get_name(), seconds=self._patience)
                task.cancel()
            if late and (stuck := (await asyncio.wait(late, timeout=_CANCEL_SECONDS))[1]):
                raise TimeoutError(f"{listed([task.get_name() for task in stuck])} cannot be ended")
        for entry in leaving:
            del self._entries[entry.input.name]
        return {entry.input.name: entry.switch for entry in leaving}

    def _store_aggregates(self) -> None:
        """Start storing aggregates if needed."""
        if self._group is None or self._stopped or self._storing is not None or self._aggregates is None:
            return
        running = keep_running(self._aggregates, self._core, self._ended, self._metrics)
        self._storing = self._group.create_task(running, name=self._aggregates.name)

    def _start(self, entry: _Entry) -> None:
        if self._group is None or self._stopped:
            return
        entry.task = self._group.create_task(
            entry.switch.run(
                lambda stopping: keep_running(entry.input, self.intake, stopping, self._metrics), entry.ended
            ),
            name=entry.input.name,
        )


def aggregates_of(core: CoreIntake, config: Config, metrics: Metrics) -> RuleAggregates | None:
    """Return the windows of aggregates, None if neither rules nor old windows exist. Raises `StateError`."""
    directory = config.state_dir / "aggregates"
    if not any(rule.aggregate for rule in config.rule) and not directory.exists():
        return None
    from agent.leaf.rules.aggregates import RuleAggregates  # not held in memory where there are none

    try:
        return RuleAggregates(directory, core, config.class_names, metrics)
    except ValueError as error:
        raise StateError(str(error)) from None


def with_rules(
    core: CoreIntake, config: Config, metrics: Metrics, aggregates: RuleAggregates | None
) -> QuickIntake:
    """Return the intake for inputs, with rules if any."""
    if aggregates is not None:
        aggregates.use(config.rule)
    elif not config.rule:
        return core
    from agent.leaf.rules.intake import RulesIntake  # not held in memory where there are no rules

    return RulesIntake(core, config.rule, metrics, aggregates)


async def keep_running(input_: Input, intake: Intake, stopping: asyncio.Event, metrics: Metrics) -> None:
    """Run an input with restarts until `stopping`."""

    async def run() -> None:
        metrics.input_up.labels(input_.name).set(1)
        try:
            await input_.run(intake, stopping)
        finally:
            metrics.input_up.labels(input_.name).set(0)

    await restart_failing(run, stopping, "input", input_.name)


async def drain(
    inputs: Sequence[asyncio.Task[None]],
    publisher: Publisher,
    sender: Sender,
    ledger: LedgerPublisher,
    state: StateFile,
    seconds: float,
) -> None:
    """Settle batches in flight and close the run within `seconds`, after inputs stopped."""
    log.info("draining", at_most_seconds=seconds)
    try:
        async with timeout(seconds):
            # What an input has read already it may still hand in.
            publisher.batches.flush()
            if inputs:
                await asyncio.wait(inputs)  # and not `gather`, which would wait on for one that goes on
            publisher.stop()
            await sender.drained()
            await ledger.close()
            log.info("drained: everything accepted is stored")
    except TimeoutError:
        log.error("drain timed out; the audit names the open tail")
    except (JetStreamError, OSError) as error:
        log.error("run not closed; the audit names its tail", error=str(error))
    sender.abandon()
    ledger.remember()
    for task in inputs:
        task.cancel()
    try:
        await state.save()
    except OSError as error:
        log.error("the state file cannot be written", error=str(error))
