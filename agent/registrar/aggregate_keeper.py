"""Keeps one aggregate as the fleet needs it: its one writer, with at most one change under way.

Changes that wait are made together, since each new source scans the aggregate under its lock. The keeper asks
nothing of leaves; whom to suspect it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, JetStreamError, StreamInfo, covers, merged
from agent.registrar.aggregate import (
    Observation,
    Source,
    Suspect,
    aggregate_config,
    faults,
    judge,
    next_look,
    observed,
    planned,
)
from agent.registrar.metrics import RegistrarMetrics
from agent.registrar.problems import Problems

_PATIENCE: Final = 1.5
"""Seconds for a source that was not seen to break to show itself: more than a heartbeat."""
_SETTLE: Final = 0.02
_UPDATE_SECONDS: Final = 30.0
_NAMED: Final = 20
_HOPELESS: Final = (
    "sources do not flow though their leaves are linked; look whether the link consumer exists on the leaf "
    "and whether the hub's server was started with the permissions for it"
)


class AggregateKeeper:
    """One aggregate. `known` names every leaf stream of the configuration; `noted` is called with the state
    of the sources before some are removed."""

    def __init__(
        self,
        js: JetStream,
        name: str,
        max_bytes: int,
        known: Collection[str],
        noted: Callable[[Observation], None],
        problems: Problems,
        metrics: RegistrarMetrics,
        log: FilteringBoundLogger,
    ) -> None:
        self.name = name
        self._js = js
        self._max_bytes = max_bytes
        self._known = known
        self._noted = noted
        self._problems = problems
        self._metrics = metrics
        self._log = log
        self._want: dict[str, Source] = {}
        self._suspects: dict[str, Suspect] = {}
        self._hopeless: set[str] = set()
        self.seen: Observation | None = None
        self._looking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()

    async def begin(self, want: Mapping[str, Source]) -> Observation:
        """Make the stream, or set right what is dangerous in it, and take over the fleet. Raises `ApiError`
        or `UnavailableError`."""
        self.seen = None
        self._want = dict(want)
        try:
            seen = await self.observe()
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            asked = _now()
            config = aggregate_config(self.name, self._max_bytes, [])
            seen = self._see(await self._js.ensure_stream(config), asked)
        have = seen.info.config
        for sentence in faults(have):
            self._log.warning(f"{self.name}: {sentence}")
        config = aggregate_config(self.name, self._max_bytes, have.get("sources") or [])
        if not covers(have, config):
            seen = await self._update(seen, config["sources"])
        self._wake.set()
        return seen

    async def observe(self, not_before: float | None = None) -> Observation:
        """The aggregate as it was at or after a monotonic time, by default now. Those who ask together share
        one question. Raises `ApiError` or `UnavailableError`."""
        wanted = _now() if not_before is None else not_before
        async with self._looking:
            if self.seen is not None and self.seen.asked >= wanted:
                return self.seen
            asked = _now()
            return self._see(await self._js.stream_info(self.name), asked)

    def want(self, sources: Mapping[str, Source]) -> None:
        """These sources shall be there in this form, besides those that are."""
        self._want |= sources
        self._wake.set()

    async def settled(self, sources: Mapping[str, Source], seconds: float) -> bool:
        """Whether these sources stand in the aggregate, as soon as they do or after so many seconds."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._has(sources))
        except TimeoutError:
            return False
        return True

    def linked(self, name: str, since: float) -> None:
        """The leaf of a source is linked, so the source has to show a sign of life after `since`; what was
        tried before counts no more."""
        self._suspects[name] = Suspect(since)
        self._wake.set()

    def silent(self, name: str) -> None:
        """A source shows no sign of life though its leaf is linked."""
        if name not in self._suspects:
            self._suspects[name] = Suspect(_now(), not_before=_now() + _PATIENCE)
            self._wake.set()

    def unlinked(self, name: str) -> None:
        """The leaf of a source is not linked any more."""
        self._suspects.pop(name, None)

    async def run(self) -> None:
        """Make what waits true, until cancelled."""
        while True:
            await self._pause()
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(JetStreamError),
                wait=wait_exponential(multiplier=0.1, max=5.0),
            ):
                with attempt:
                    await self._cycle()

    async def _pause(self) -> None:
        due = min((next_look(one, _now()) for one in self._suspects.values()), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(due - _now(), _SETTLE)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _cycle(self) -> None:
        self._wake.clear()
        try:
            await self._make_true()
        except JetStreamError as error:
            self._problems.begin(self.name, f"{self.name} cannot be brought up to date: {error}")
            if isinstance(error, ApiError) and error.err_code == STREAM_NOT_FOUND:
                await self.begin(self._want)
            raise
        self._problems.end(self.name, f"{self.name} is up to date")
        async with self._changed:
            self._changed.notify_all()

    async def _make_true(self) -> None:
        seen = await self.observe()
        have = seen.info.config.get("sources") or []
        target = planned(have, self._want, self._known)
        again = self._judge(seen)
        if again:
            target = have if target is None else target
            # Wanted from here on, so that a failure between the two changes does not lose them.
            self._want |= {one["name"]: one for one in target if one["name"] in again}
            self._noted(seen)
            seen = await self._update(seen, [one for one in have if one["name"] not in again])
            self._metrics.readds.inc(len(again))
        if target is not None:
            await self._update(seen, target)
            self._log.info("sources changed", stream=self.name, sources=len(target), added_again=len(again))
        for name in again:
            if name in self._suspects:
                self._suspects[name] = self._suspects[name].tried(_now())

    def _judge(self, seen: Observation) -> set[str]:
        """The sources to remove and add again."""
        verdicts = {
            name: judge(suspect, seen.states.get(name), seen.asked)
            for name, suspect in self._suspects.items()
        }
        again = {name for name, verdict in verdicts.items() if verdict == "again"}
        well = {name for name, verdict in verdicts.items() if verdict == "well"}
        for name in well:
            del self._suspects[name]
        self._say_hopeless({name for name in again if self._suspects[name].hopeless}, well)
        return again

    def _say_hopeless(self, new: set[str], well: set[str]) -> None:
        """Say which sources a person should look after and which are well again, each once."""
        if ended := self._hopeless & well:
            self._log.info("sources flow again", sources=len(ended), names=sorted(ended)[:_NAMED])
        if begun := new - self._hopeless:
            self._log.warning(_HOPELESS, sources=len(begun), names=sorted(begun)[:_NAMED])
        self._hopeless = self._hopeless - well | new

    async def _update(self, seen: Observation, sources: list[Source]) -> Observation:
        config: dict[str, Any] = merged(
            seen.info.config, aggregate_config(self.name, self._max_bytes, sources)
        )
        async with self._looking:
            asked = _now()
            return self._see(await self._js.update_stream(config, timeout=_UPDATE_SECONDS), asked)

    def _see(self, info: StreamInfo, asked: float) -> Observation:
        self.seen = observed(info, asked)
        self._metrics.aggregate_messages.labels(self.name).set(info.messages)
        self._metrics.aggregate_bytes.labels(self.name).set(info.bytes)
        return self.seen

    def _has(self, sources: Mapping[str, Source]) -> bool:
        if self.seen is None:
            return False
        have = {one["name"]: one for one in self.seen.info.config.get("sources") or []}
        return all(name in have and covers(have[name], one) for name, one in sources.items())


def _now() -> float:
    return asyncio.get_running_loop().time()
