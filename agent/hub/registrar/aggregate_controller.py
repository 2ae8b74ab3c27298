"""Reconciles one aggregate with the fleet's needs, as its only writer.

It looks each second. Changes are combined and rest, as each new source scans the aggregate under its lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from agent.base.nats_server import merged
from agent.base.wait import event_within, loop_time, timeout
from agent.hub.registrar.aggregate import (
    ALIVE,
    AggregateSettings,
    Observation,
    Source,
    aggregate_config,
    differences,
    faults,
    moved_by_hand,
    observed,
    planned,
)
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.stalled_sources import StalledSources, say, trouble
from agent.jetstream import (
    STREAM_NOT_FOUND,
    JetStream,
    JetStreamError,
    StreamInfo,
    UnavailableError,
    unless_refused,
)
from agent.jetstream.info import covers

_SETTLE: Final = 0.02
_LOOK_SECONDS: Final = 1.0
_UPDATE_SECONDS: Final = 30.0
_REST: Final = 4.0
"""Pause as a multiple of a change, for a fifth of the time at most."""
_LONGEST_REST: Final = 5.0
_RETURNING_REST: Final = 1.0
"""Shorter pause while returning sources wait."""

log = structlog.get_logger("registrar")


class AggregateController:
    """Controls one aggregate; `turns` bound parallel scans.

    `may_stay` admits unannounced sources, `made` returns metadata, `noted` gets states before removals.
    """

    def __init__(
        self,
        js: JetStream,
        name: str,
        settings: AggregateSettings,
        may_stay: Callable[[str], bool],
        fleet: FleetState,
        turns: asyncio.Semaphore,
        problems: ActiveProblems,
        metrics: RegistrarMetrics,
    ) -> None:
        self.name = name
        self._js = js
        self._settings = settings
        self._may_stay = may_stay
        self._fleet = fleet
        self._turns = turns
        self._problems = problems
        self._metrics = metrics
        self._want: dict[str, Source] = {}
        self._out: set[str] = set()
        self._placed: dict[str, Source] = {}
        self._checked: dict[str, Any] | None = None
        self._heeded = 0
        self._suspects = StalledSources()
        self.seen: Observation | None = None
        self._looking = asyncio.Lock()
        self._wake, self._linked = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Condition()
        self._changed_at, self._change_seconds = 0.0, 0.0

    async def begin(self, want: Mapping[str, Source]) -> Observation:
        """Create or repair the stream for the fleet. Raises `ApiError` or `UnavailableError`."""
        self.seen = None
        self._want = dict(want)
        self._suspects = StalledSources()
        found = None
        with unless_refused(STREAM_NOT_FOUND):
            found = await self.observe()
        seen = found or await self._make()
        have = seen.info.config
        for sentence in faults(have):
            log.warning(f"{self.name}: {sentence}")
        config = aggregate_config(self.name, self._settings, have.get("sources") or [])
        if not covers(have, config):
            seen = await self._update(seen, config["sources"])
        self._place(seen)
        self._wake.set()
        return seen

    async def observe(self, not_before: float | None = None) -> Observation:
        """Return an observation from `not_before` (default: now), shared. Raises `ApiError` or
        `UnavailableError`.
        """
        wanted = loop_time() if not_before is None else not_before
        if self.seen is not None and self.seen.asked >= wanted:
            return self.seen  # without waiting for a change that is under way
        async with self._looking:
            if self.seen is not None and self.seen.asked >= wanted:
                return self.seen
            asked = loop_time()
            info = await self._js.stream_info(self.name)
            if info.config.get("num_replicas", 1) > 1 and not info.leader:
                # Any server answers for a group without a leader, also one that lacks messages (nats-server
                # 2.15.3, `jsStreamInfoRequest` in server/jetstream_api.go).
                raise UnavailableError(f"no server of the hub leads {self.name}")
            return self._see(info, asked)

    def want(self, sources: Mapping[str, Source]) -> None:
        """Add these sources."""
        for name, source in sources.items():
            if self._want.get(name) != source:
                self._suspects.changed(name, loop_time())
        self._want |= sources
        self._out -= sources.keys()
        self._heed()

    def without(self, names: Collection[str]) -> None:
        """Remove these sources until wanted."""
        for name in names:
            self._want.pop(name, None)
        self._out |= set(names)
        self._heed()

    async def settled(self, sources: Mapping[str, Source], seconds: float) -> bool:
        """Wait up to `seconds` for these sources; returns whether present."""
        try:
            async with timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._has(sources))
        except TimeoutError:
            return False
        return True

    def linked(self, name: str, since: float) -> None:
        """Expect a sign of life from a source after `since`."""
        self._suspects.linked(name, since)
        self._wake.set()
        self._linked.set()

    def silent(self, name: str) -> None:
        """Note a silent source of a linked leaf."""
        if self._suspects.silent(name, loop_time()):
            self._wake.set()

    def unlinked(self, name: str) -> None:
        """Note a lost link."""
        self._suspects.unlinked(name)

    def troubles(self) -> dict[str, str]:
        """Return why linked sources do not flow."""
        states = self.seen.states if self.seen is not None else {}
        found = self._suspects.hopeless()
        return found | {name: words for name, state in states.items() if (words := trouble(state))}

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            await self._pause()
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(JetStreamError),
                wait=wait_exponential(multiplier=0.1, max=_LOOK_SECONDS),
            ):
                with attempt:
                    await self._cycle()

    def _heed(self) -> None:
        self._heeded += 1
        self._checked = None
        self._wake.set()

    async def _pause(self) -> None:
        now = loop_time()
        due = self._suspects.next_look(now)
        wait = _LOOK_SECONDS if due is None else min(max(due - now, _SETTLE), _LOOK_SECONDS)
        await event_within(self._wake, wait)
        await asyncio.sleep(self._rest(_RETURNING_REST))
        self._linked.clear()
        if self.seen is None or not self._suspects.return_in(self.seen.states):
            await event_within(self._linked, self._rest(_REST))

    def _rest(self, times: float) -> float:
        """Return the remaining pause in seconds."""
        return max(0.0, self._changed_at + min(_LONGEST_REST, times * self._change_seconds) - loop_time())

    async def _cycle(self) -> None:
        if self.seen is None or not self._js.connected:
            self._wake.clear()
            return  # `begin` comes first, and wakes this up
        asked = loop_time() if self._wake.is_set() else loop_time() - _LOOK_SECONDS / 2
        self._wake.clear()
        try:
            await self._make_true(await self._look(asked))
        except JetStreamError as error:
            self._problems.begin(self.name, f"{self.name} cannot be brought up to date: {error}", hub=True)
            raise
        self._problems.end(self.name, f"{self.name} is up to date")
        async with self._changed:
            self._changed.notify_all()

    async def _look(self, not_before: float) -> Observation:
        with unless_refused(STREAM_NOT_FOUND):
            return await self.observe(not_before)
        log.warning(
            f"{self.name} had been deleted by hand and is recreated; what the leaves still hold of it comes "
            f"again, the audit names the rest"
        )
        seen = await self._make()
        self._placed = {}
        return seen

    async def _make(self) -> Observation:
        asked = loop_time()
        config = aggregate_config(self.name, self._settings, [])
        return self._see(await self._js.ensure_stream(config), asked)

    async def _make_true(self, seen: Observation) -> None:
        heeded = self._heeded
        verdicts = self._suspects.look(seen.states, seen.asked)
        say(verdicts, self.troubles)
        target = self._planned(seen) if seen.info.config != self._checked else None
        if verdicts.again or target is not None:
            async with self._turns:
                seen = await self._change(seen, verdicts.again, target)
        # What was wanted while the changes were made is not in them.
        self._checked = seen.info.config if heeded == self._heeded else None

    async def _change(self, seen: Observation, again: set[str], target: list[Source] | None) -> Observation:
        if again:
            # A turn may have been seconds away, and a source have come back by itself: removed while data
            # flows, it may be added with a cursor behind what is on its way and never stored.
            seen = await self.observe()
            again = {name for name in again if name in seen.states and not seen.states[name].alive(ALIVE)}
        have = seen.info.config.get("sources") or []
        if again:
            target = have if target is None else target
            # Wanted from here on, so that a failure between the two changes does not lose them. What was
            # wanted or dropped while the change waited for its turn is newer than its plan.
            kept = {source["name"]: source for source in target if source["name"] in again - self._out}
            self._want = kept | self._want
            self._fleet.note(seen)
            seen = await self._update(seen, [source for source in have if source["name"] not in again])
            self._metrics.readds.inc(len(again))
        if target is not None:
            if {source["name"] for source in have} - {source["name"] for source in target}:
                self._fleet.note(seen)
            seen = await self._update(seen, target)
            log.info("sources changed", stream=self.name, sources=len(target), added_again=len(again))
        self._suspects.tried(again, loop_time())
        return seen

    def _planned(self, seen: Observation) -> list[Source] | None:
        """Return wanted sources, None without change."""
        config = seen.info.config
        have = config.get("sources") or []
        target = planned(have, self._want, lambda name: name not in self._out and self._may_stay(name))
        should = aggregate_config(self.name, self._settings, have)
        other = [] if covers(config, should) else differences(config, should)
        for sentence in other + moved_by_hand(have, self._placed):
            log.warning(f"{self.name}: {sentence}")
        self._placed = {source["name"]: source for source in have}
        named = covers(config, {"metadata": self._fleet.made(self.name)})
        return have if target is None and (other or not named) else target

    async def _update(self, seen: Observation, sources: list[Source]) -> Observation:
        config: dict[str, Any] = merged(
            seen.info.config,
            aggregate_config(self.name, self._settings, sources, self._fleet.made(self.name)),
        )
        async with self._looking:
            asked = loop_time()
            seen = self._see(await self._js.update_stream(config, timeout=_UPDATE_SECONDS), asked)
            self._changed_at, self._change_seconds = loop_time(), loop_time() - asked
        self._place(seen)
        return seen

    def _place(self, seen: Observation) -> None:
        self._placed = {source["name"]: source for source in seen.info.config.get("sources") or []}

    def _see(self, info: StreamInfo, asked: float) -> Observation:
        self.seen = observed(info, asked)
        self._metrics.aggregate_messages.labels(self.name).set(info.messages)
        self._metrics.aggregate_bytes.labels(self.name).set(info.bytes)
        return self.seen

    def _has(self, sources: Mapping[str, Source]) -> bool:
        if self.seen is None:
            return False
        have = self._placed
        return all(name in have and covers(have[name], source) for name, source in sources.items())
