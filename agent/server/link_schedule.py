"""Opens and closes the link of a leaf by its windows: the remote is disabled in the server's configuration,
which is reloaded (21 ms on nats-server 2.15.1). A paused consumer would not do, for its heartbeats go on.

An agent that is dead leaves the link as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from agent.base.logs import LogEdge
from agent.base.nats_server import ServerError
from agent.config.values import Windows, local_time
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer

LOOK_SECONDS: Final = 5.0

log = structlog.get_logger("link")


class LinkScheduler:
    """The gate of one server's link. Why it is closed stands in `health.closed`."""

    def __init__(
        self,
        server: EmbeddedServer,
        windows: Windows,
        health: ServerHealth,
        now: Callable[[], datetime] = local_time,
    ) -> None:
        self._server, self._windows, self._health, self._now = server, windows, health, now
        self._failing = LogEdge(log, error=True)

    async def run(self) -> None:
        """Follow the windows until cancelled, each time within `LOOK_SECONDS`: the clock may be set."""
        while True:
            await self.follow()
            await asyncio.sleep(LOOK_SECONDS)

    async def follow(self) -> None:
        """Open or close the link as it is time to."""
        closed = self._windows.closed(self._now())
        try:
            await self._server.set_link(not closed)
        except ServerError as error:
            self._failing.begin("the link cannot be opened or closed", closed=closed, error=str(error))
            return
        self._failing.end()
        if closed != self._health.closed:
            log.info(closed or "the link is open")
        self._health.closed = closed
