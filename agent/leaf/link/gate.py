"""The gate of a leaf's link: closed outside of its windows, and for a while where its hub answers and does
not take the link.

A closed remote is disabled in the server's configuration, which is reloaded (21 ms). A
paused consumer would not do, for its heartbeats go on. An agent that is dead leaves the link as it is.

For each link that comes up, a hub's nats-server goes through the interest of all links that are up.
A leaf's server gives up a link of which the hub says nothing within 2 s of its CONNECT, and dials again a
second later; what the hub's server then does for the link that was given up is wasted. Of some thousand
leaves that dial at once most are never linked. So each waits for a random part of the time that the hub needs
for all (`Answer.spread_seconds`), and of up to four times that after further dials that failed.
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
"""How often the gate is looked at, and how long a link may take to come up. A leaf's server dials each second
or two."""
_ANSWER_SECONDS: Final = 3.0
_STEADY_SECONDS: Final = 60.0
_LONGEST: Final = 4.0
"""Times the hub's own time. A leaf whose key the hub learns late is not to wait for hours."""

log = structlog.get_logger("link")


class DialSpread:
    """When a link is dialled again that its hub does not take. Pure; times are monotonic seconds, and `part`
    is a random number from 0 to 1."""

    def __init__(self, part: Callable[[], float] = random.random) -> None:
        self._part = part
        self._dialled = self._until = 0.0
        self._answering: float | None = None
        self._factor = Backoff(1.0, _LONGEST)

    def is_waiting(self, link: UplinkStatus, now: float) -> bool:
        """Whether the link is not to be dialled yet."""
        if link.up:
            self._until, self._answering = 0.0, None
            if now - link.since >= _STEADY_SECONDS:
                self._factor.reset()
            return False
        if self._until and now >= self._until:
            self._dialled, self._until = now, 0.0
        return bool(self._until)

    def is_late(self, link: UplinkStatus, now: float) -> bool:
        """Whether a link that the hub takes would be up by now."""
        return not link.up and now - max(link.since, self._dialled) >= LOOK_SECONDS

    def answered(self, answers: bool, now: float) -> bool:
        """Whether the hub has answered for so long that its link would be up; it may do so again only now."""
        if not answers:
            self._answering = None
        elif self._answering is None:
            self._answering = now
        return self._answering is not None and now - self._answering >= LOOK_SECONDS

    def wait(self, spread: float, now: float) -> float:
        """The seconds to wait, where the hub takes `spread` seconds for the links of all its leaves, answers
        and has not taken this one."""
        seconds = self._part() * spread * self._factor.next()
        self._until = now + seconds
        return seconds


class LinkGate:
    """The gate of one server's link, `uplink`, which is None where nothing is known of it. Why it is closed
    stands in `health.closed`. `spread` is what the hub last said of its time for all links, in seconds; 0 if
    nothing."""

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
        """Follow the windows and the link until cancelled, each time within `LOOK_SECONDS`: the clock may be
        set."""
        while True:
            await self.follow()
            await asyncio.sleep(LOOK_SECONDS)

    async def follow(self) -> None:
        """Open or close the link as it is time to."""
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
        """Why the hub is not to be dialled now, "" if it may be."""
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
    """Whether a server is at one of these addresses: it takes a connection and does not end it. One that has
    too much to do takes a while to say anything."""
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
