"""Closes the link outside its windows, and for a while when the hub answers without accepting it.

The remote is disabled by reloading the server (21 ms); a paused consumer would still send heartbeats. A dead
agent leaves the link unchanged.

A hub's server examines all links' interests per new link, and leaf servers give up after 2 s of silence. So
with thousands of dialling leaves most never link. Each waits a random part of `Answer.spread_seconds`, up to
four times that after failures.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

import structlog

from agent.base.logs import LogEdge
from agent.base.nats_server import ServerError
from agent.base.wait import Backoff, loop_time, timeout
from agent.config.values import Windows, local_time
from agent.leaf.link.observation import UplinkStatus
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer
from agent.server.values import LeafConfig

LOOK_SECONDS: Final = 5.0
"""Interval of checks, and time for a link; servers dial every second or two."""
_ANSWER_SECONDS: Final = 3.0
_STEADY_SECONDS: Final = 60.0
_LONGEST: Final = 4.0
"""Limit as multiple of the hub's time."""

log = structlog.get_logger("link")


class DialSpread:
    """Times redials. Pure; monotonic seconds, `part` random from 0 to 1."""

    def __init__(self, part: Callable[[], float] = random.random) -> None:
        self._part = part
        self._dialled = self._until = 0.0
        self._answering: float | None = None
        self._factor = Backoff(1.0, _LONGEST)

    def is_waiting(self, link: UplinkStatus, now: float) -> bool:
        """Tell whether to wait."""
        if link.up:
            self._until, self._answering = 0.0, None
            if now - link.since >= _STEADY_SECONDS:
                self._factor.reset()
            return False
        if self._until and now >= self._until:
            self._dialled, self._until = now, 0.0
        return bool(self._until)

    def is_late(self, link: UplinkStatus, now: float) -> bool:
        """Tell whether an accepted link would be up."""
        return not link.up and now - max(link.since, self._dialled) >= LOOK_SECONDS

    def answered(self, answers: bool, now: float) -> bool:
        """Tell whether the hub answered long enough for a link; resets the count."""
        if not answers:
            self._answering = None
        elif self._answering is None:
            self._answering = now
        return self._answering is not None and now - self._answering >= LOOK_SECONDS

    def wait(self, spread: float, now: float) -> float:
        """Return the seconds to wait when the hub needs `spread` for all links and did not take this."""
        seconds = self._part() * spread * self._factor.next()
        self._until = now + seconds
        return seconds


class LinkGate:
    """The gate of `uplink` (None: unknown). `health.closed` has the reason; `spread` is the hub's time, 0 if
    unknown.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        windows: Windows,
        health: ServerHealth,
        uplink: Callable[[], UplinkStatus | None],
        spread: Callable[[], float],
        now: Callable[[], datetime] = local_time,
        dials: DialSpread | None = None,
    ) -> None:
        self._server, self._windows, self._health, self._now = server, windows, health, now
        self._uplink, self._spread = uplink, spread
        self._dials, self._held_back = dials or DialSpread(), ""
        self._failing = LogEdge(log, error=True)

    async def run(self) -> None:
        """Follow windows and link until cancelled, at least each `LOOK_SECONDS`."""
        while True:
            await self.follow()
            await asyncio.sleep(LOOK_SECONDS)

    async def follow(self) -> None:
        """Open or close the link if due."""
        closed = self._windows.closed(self._now()) or await self._hold_back()
        try:
            await self._server.set_link(not closed)
        except ServerError as error:
            self._failing.begin("the link cannot be opened or closed", closed=closed, error=str(error))
            return
        self._failing.end()
        if closed != self._health.closed:
            log.info(closed or "the link is open")
        self._health.closed = closed

    async def _hold_back(self) -> str:
        """Return why not to dial, "" if allowed."""
        link, spread = self._uplink(), self._spread()
        if link is None:
            return ""
        if self._dials.is_waiting(link, loop_time()):
            return self._held_back
        if spread == 0 or not self._dials.is_late(link, loop_time()):
            return ""
        if not self._dials.answered(await self._hub_answers(), loop_time()):
            return ""
        if (link := self._uplink()) is None or link.up:
            return ""
        again = self._now() + timedelta(seconds=self._dials.wait(spread, loop_time()))
        self._held_back = (
            f"the link is closed until {again:%H:%M:%S}: the hub answers and does not take it, so its leaves"
            " dial one after the other"
        )
        return self._held_back

    async def _hub_answers(self) -> bool:
        config = self._server.config
        if not isinstance(config, LeafConfig) or "proxy" in config.remote:
            return False  # a proxy answers for a hub that is not there
        return await answers(config.hub_urls)


async def answers(urls: Iterable[str]) -> bool:
    """Tell whether an address takes and keeps a connection; a busy server stays silent for a while."""
    for url in urls:
        address = urlsplit(url)
        with suppress(OSError, TimeoutError):
            async with timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                async with timeout(_ANSWER_SECONDS):
                    if await reader.read(1):
                        return True
            except TimeoutError:
                return True
            finally:
                writer.transport.abort()
    return False
