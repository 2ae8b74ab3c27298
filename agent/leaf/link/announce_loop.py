"""Times announcements: at intervals, at changes, and less often without answer; tracks idle classes.

The hub may drop sources of idle classes, whose heartbeats are most of an idle link's cost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import structlog
from msgspec import Struct

from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within, loop_time, unless
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.link.announcer import Announcer, AnnounceResult
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.link.status import LinkStatus

CROWDED_SECONDS: Final = 2.0
"""Interval while a stream waits for a trim."""
_FIRST, _LONGEST = 0.05, 1.0

log = structlog.get_logger("link")


class AnnounceLoop:
    """Announces every `seconds`; results go to `accept`, local failures to `unreachable`. `repairs` tells of
    a due epoch.
    """

    def __init__(
        self,
        status: LinkStatus,
        metrics: Metrics,
        uplink: Callable[[], UplinkStatus],
        accept: Callable[[JetStream, Announcer, AnnounceResult], Awaitable[None]],
        unreachable: Callable[[JetStream, JetStreamError], None],
        repairs: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._status, self._metrics, self._uplink = status, metrics, uplink
        self._accept, self._unreachable, self._seconds = accept, unreachable, seconds
        self._repairs = repairs
        self._over: tuple[JetStream, Announcer] | None = None
        self._due = asyncio.Event()
        self._relinked = asyncio.Event()
        self._asking = False
        self._silence = ""
        self.refused: str | None = None
        """The hub's sentence of refusal."""
        self.refused_classes: Mapping[str, str] = {}
        """Refusals by class."""
        self.silent_since: float | None = None
        """First unanswered request since the last answer, or None."""
        self.round_trip = 0.0
        """Seconds of the fastest answer over this link, 0 before. The first answer meets an empty line."""

    @contextlib.contextmanager
    def connected(self, js: JetStream, announcer: Announcer) -> Iterator[None]:
        """Announce over this connection within the scope, at once."""
        self._over = (js, announcer)
        self._due.set()
        try:
            yield
        finally:
            self._over = None

    def announce_now(self) -> None:
        """Announce now, but after failures no sooner than the backoff."""
        self._due.set()

    def ask(self) -> None:
        """Announce now unless one is pending."""
        if not self._asking:
            self._due.set()

    def link_changed(self) -> None:
        """Announce at once; earlier failures and pending requests do not count."""
        self.round_trip = 0.0
        self._relinked.set()
        self._due.set()

    async def run(self) -> None:
        backoff, refusals = Backoff(_FIRST, _LONGEST), Backoff(min(_LONGEST, self._seconds), self._seconds)
        while True:
            self._due.clear()
            if self._relinked.is_set():
                self._relinked.clear()
                backoff.reset()
            if self._over is not None:
                if not await self._once(*self._over):
                    await event_within(self._relinked, backoff.next())
                elif self.refused is not None:
                    await event_within(self._relinked, refusals.next())
                else:
                    backoff.reset()
                    refusals.reset()
            await event_within(self._due, self._pause())

    def _pause(self) -> float:
        if self.silent_since is not None:
            return _LONGEST
        crowded = any(link.crowded for link in self._status.classes.values())
        return CROWDED_SECONDS if crowded else self._seconds

    async def _once(self, js: JetStream, announcer: Announcer) -> bool:
        """Announce; returns whether the hub answered."""
        confirmed = {cls: link.confirmed for cls, link in self._status.classes.items()}
        try:
            result = await self._answer(announcer, confirmed)
            if result is None:
                return False
            if self._over is None or self._over[0] is not js:
                return True
            self._note(result)
            await self._accept(js, announcer, result)
        except JetStreamError as error:
            self._unreachable(js, error)
            return False
        return result.answer is not None

    async def _answer(self, announcer: Announcer, confirmed: Mapping[str, int]) -> AnnounceResult | None:
        """Announce; None if the link changed meanwhile."""
        self._asking, asked_at = True, loop_time()
        try:
            asked = announcer.announce(confirmed, self._uplink(), repairs=self._repairs())
            result = await unless(self._relinked, asked)
        finally:
            self._asking = False
        if result is not None and result.answer is not None:
            took = loop_time() - asked_at
            self.round_trip = min(self.round_trip or took, took)
        return result

    def _note(self, result: AnnounceResult) -> None:
        self._metrics.linked.set(result.answer is not None)
        if result.answer is not None:
            self.silent_since, self._silence = None, ""
            self.refused, self.refused_classes = result.answer.refused, result.answer.refused_classes
            return
        self.silent_since = self.silent_since or loop_time()
        if result.silence != self._silence:
            log.debug("announcement not answered", why=result.silence)
        self._silence = result.silence


class _Rest(Struct):
    after: float | None
    place: tuple[object, ...] | None = None
    since: float = 0.0


class IdleClasses:
    """Tracks idle classes after so many seconds (None: never); calls `ended` at an idle class's end."""

    def __init__(
        self,
        after: Mapping[str, float | None],
        ended: Callable[[], None],
        now: Callable[[], float] = loop_time,
    ) -> None:
        self._ended, self._now = ended, now
        self._rests = {cls: _Rest(seconds) for cls, seconds in after.items()}

    def seen(self, cls: str, *place: object) -> None:
        if self._rests[cls].place != place:
            self.moved(cls)
            self._rests[cls].place = place

    def moved(self, cls: str) -> None:
        """Note data or a link change."""
        was_idle = self.is_idle(cls)
        self._rests[cls].since = self._now()
        if was_idle:
            self._ended()

    def is_idle(self, cls: str) -> bool:
        rest = self._rests[cls]
        return rest.after is not None and rest.place is not None and self._now() - rest.since >= rest.after

    @property
    def any_idle(self) -> bool:
        """Tell whether a class is idle, so that its first reading must be noticed soon."""
        return any(self.is_idle(cls) for cls in self._rests)
