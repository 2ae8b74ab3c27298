"""Ends the links of leaves that are let in no more. A server that reads its configuration again lets them in
no more, but leaves the links that are up as they are (seen on nats-server 2.15.1).

Nothing tells by which key a link came in that was there before this agent: its server's name is its owner's
choice. So when a key has gone since the last time, all links are cut. A leaf redials within a second and
loses nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from typing import Final

import nats.errors
from nats.aio.client import Client
from structlog.typing import FilteringBoundLogger

from agent.jetstream import JetStreamError
from agent.registrar.fleet_events import LinkEvent, LinkId
from agent.registrar.fleet_store import FleetStore
from agent.server.permissions import KICK

_SECONDS: Final = 2.0
_AT_ONCE: Final = 64


class LinkCutter:
    """`keys` are let in, `revoked` gives the domain of each that is not any more. Without a connection to the
    system account (`nc`) it can cut nothing."""

    def __init__(
        self,
        nc: Client | None,
        store: FleetStore,
        keys: frozenset[str],
        revoked: Mapping[str, str],
        log: FilteringBoundLogger,
    ) -> None:
        self._nc, self._store, self._keys, self._revoked, self._log = nc, store, keys, revoked, log
        self.settled = nc is None

    async def settle(self, links: Collection[LinkId]) -> None:
        """Cut all links if a key has gone since this was done last."""
        if self.settled:
            return
        try:
            before = await self._store.let_in()
            gone = frozenset(self._revoked) if before is None else before - self._keys
            if gone and await self._cut(links):
                self._log.warning("all links are cut, for a key is let in no more", keys=len(gone))
            if before != self._keys:
                await self._store.save_let_in(self._keys)
        except (JetStreamError, nats.errors.Error, TimeoutError) as error:
            self._log.error("links cannot be cut yet", reason=str(error))
            return
        self.settled = True

    async def refuses(self, event: LinkEvent) -> bool:
        """Whether a link that came up has a key that was revoked; then it is cut. Only a hub's server with an
        older configuration lets it in."""
        domain = self._revoked.get(event.user)
        if domain is None:
            return False
        try:
            await self._cut([event.link])
        except (nats.errors.Error, TimeoutError) as error:
            self._log.error("a link cannot be cut", domain=domain, reason=str(error))
        self._log.warning(
            "a link with a revoked key was let in and is cut: give the hub's server the new configuration",
            domain=domain,
        )
        return True

    async def _cut(self, links: Collection[LinkId]) -> int:
        """Cut these links and return how many were there to be cut."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def cut(nc: Client, link: LinkId) -> bool:
            server, number = link
            async with places:
                body = json.dumps({"cid": number}).encode()
                answer = await nc.request(KICK.format(server), body, timeout=_SECONDS)
            return "error" not in json.loads(answer.data)

        if self._nc is None:
            return 0
        return sum(await asyncio.gather(*(cut(self._nc, link) for link in links)))
