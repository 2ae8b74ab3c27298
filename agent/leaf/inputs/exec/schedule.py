"""When an `exec` input runs its command: at intervals, or again when it ends."""

from __future__ import annotations

import asyncio
from typing import Final

from structlog.typing import FilteringBoundLogger

from agent.base.log_edges import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.leaf.inputs.exec.options import ExecOptions
from agent.leaf.inputs.exec.program import Program
from agent.leaf.inputs.formats.line_formats import make_form
from agent.leaf.inputs.shared.gatherer import MAX_SHARE, Buffer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.intake import Intake

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 60.0
_STEADY: Final = 60.0


class Schedule:
    """Runs the command of one input again and again."""

    def __init__(
        self,
        options: ExecOptions,
        metrics: Metrics,
        intake: Intake,
        stopping: asyncio.Event,
        log: FilteringBoundLogger,
    ) -> None:
        self._options = options
        self._stopping = stopping
        self._log = log
        self._up = metrics.input_up.labels(options.name)
        self._keeper = RetryingSubmitter(options, metrics, intake, stopping, log)
        self._form = make_form(
            options.format, intake.domain, precision=options.precision, device_tag=options.device_tag
        )
        self._failing = LogEdge(log, "the command runs well again")
        self._said = Sparse()

    async def run(self) -> None:
        """Until the agent stops."""
        if self._options.interval is None:
            await self._for_good()
        else:
            await self._at_intervals(self._options.interval)
        self._keeper.end()

    async def _at_intervals(self, interval: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stopping.is_set():
            self._tell(await self._once(self._options.timeout, self._options.output), "it is run again")
            due = max(due + interval, loop.time() - (loop.time() - due) % interval)
            await unless(self._stopping, asyncio.sleep(due - loop.time()))

    async def _for_good(self) -> None:
        loop = asyncio.get_running_loop()
        delay = _FIRST_DELAY
        while not self._stopping.is_set():
            self._up.set(1)
            began = loop.time()
            trouble = await self._once(None, None)
            if loop.time() - began > _STEADY:
                delay = _FIRST_DELAY
            if self._stopping.is_set():
                return
            self._tell(trouble or "it ended, though it is to run for good", "it is started again")
            await unless(self._stopping, asyncio.sleep(delay))
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _once(self, timeout: float | None, limit: int | None) -> str | None:
        """Run the command and store what it prints; what went wrong."""
        async with asyncio.TaskGroup() as group:
            buffer = Buffer(MAX_SHARE, group)
            program = Program(self._options, self._form, self._keeper, buffer, self._log, self._said, limit)
            try:
                return await program.run(self._stopping, timeout)
            except OSError as error:
                return f"it cannot be started: {error.strerror or error}"

    def _tell(self, trouble: str | None, next_step: str) -> None:
        self._up.set(trouble is None)
        if trouble is None:
            self._failing.end()
        else:
            self._failing.begin(f"{self._options.command[0]}: {trouble}; {next_step}")
