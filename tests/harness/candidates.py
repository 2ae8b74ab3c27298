"""Agents of a hub that take its lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent.base.metrics import Metrics
from agent.hub.leadership import Leadership, LeadJetStream
from agent.hub.registrar.metrics import LeadMetrics
from tests.harness.servers import ServerPair
from tests.harness.wait import WAIT_SECONDS


class Candidate:
    """One agent's part in the lead, and the API as its registrar has it."""

    def __init__(self, lead: Leadership, js: LeadJetStream, task: asyncio.Task[None]) -> None:
        self.lead, self.js, self._task = lead, js, task

    async def leads(self) -> None:
        """Return once it does."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.lead.taken.wait()

    async def stop(self) -> None:
        """It does nothing any more, and notices nothing: neither that its time is over nor an answer."""
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def candidate(
    servers: ServerPair, name: str, server: str = "", replicas: int = 1
) -> AsyncIterator[Candidate]:
    """An agent that takes the lead when it can, beside a `server` of this name if it is not the hub's."""
    nc, system = await servers.hub.connect("registrar"), await servers.hub.connect("registrar_system")
    if server:
        nc._server_info["server_name"] = server
    lead = Leadership(nc, system, name, replicas, (), LeadMetrics(Metrics().registry))
    task = asyncio.create_task(lead.run())
    try:
        yield Candidate(lead, LeadJetStream(lead._nc, lead), task)
    finally:
        task.cancel()
