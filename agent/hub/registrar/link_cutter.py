"""Disconnects leaves whose key was revoked, since a server's reload keeps existing links. Remove when it ends
them.

Older links' keys are unknown, so after a revocation all links are cut; leaves redial within a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client

from agent.base.logs import LogEdge, Sparse
from agent.base.wait import bounded_gather, loop_time
from agent.hub.registrar.fleet_events import LinkEvent, LinkId
from agent.hub.registrar.fleet_store import FleetStore
from agent.jetstream import JetStreamError
from agent.server.permissions import KICK

_SECONDS: Final = 2.0
_UNLISTED_SECONDS: Final = 2.0
"""Time within which a server lists a link that it has reported."""

log = structlog.get_logger("registrar")


class LinkCutter:
    """Knows admitted `keys` and `revoked` ones by domain. Cuts only with `nc` and while it `leads`."""

    def __init__(
        self,
        nc: Client | None,
        store: FleetStore,
        keys: frozenset[str],
        revoked: Mapping[str, str],
        leads: Callable[[], bool],
    ) -> None:
        self._nc, self._store, self._keys, self._revoked = nc, store, keys, revoked
        self._leads = leads
        self._compared = nc is None
        self._cleared: set[str] = set()
        self._unconfirmed: set[LinkId] = set()
        self._unlisted_until: dict[LinkId, float] = {}
        self._failures, self._uncompared = Sparse(), LogEdge(log, error=True)

    @property
    def settled(self) -> bool:
        """Whether no known link must end."""
        return self._compared and not self._unconfirmed

    async def settle(self, links: Collection[LinkId], *, complete: bool) -> None:
        """Cut all links after a revocation, and remaining ones again; `complete` if all servers answered."""
        asked, now = frozenset(self._unconfirmed), loop_time()
        self._unlisted_until = {link: until for link, until in self._unlisted_until.items() if until > now}
        self._unconfirmed -= asked - await self._cut(asked.intersection({*links, *self._unlisted_until}))
        try:
            if not self._compared:
                await self._compare(links, complete)
            self._uncompared.end()
        except (JetStreamError, nats.errors.Error) as error:
            self._uncompared.begin("links not cut yet", reason=str(error))

    async def refuses(self, event: LinkEvent) -> bool:
        """Cut a new link with a revoked key, from a server with an older configuration; returns whether.

        nats-server 2.15.1 reports a link before it lists and kicks it (server/auth.go, server/leafnode.go).
        """
        domain = self._revoked.get(event.user)
        if domain is None:
            return False
        log.warning(
            "a link with a revoked key was let in and is cut: give the hub's server the new configuration",
            domain=domain,
        )
        if await self._cut([event.link]):
            self._unlisted_until[event.link] = loop_time() + _UNLISTED_SECONDS
            self._unconfirmed.add(event.link)
        return True

    async def _compare(self, links: Collection[LinkId], complete: bool) -> None:
        before = await self._store.let_in()
        gone = frozenset(self._revoked) if before is None else before - self._keys
        # Once at each server: the leaves come back with their good keys.
        doomed = {link for link in links if link[0] not in self._cleared} if gone else set()
        if doomed:
            self._cleared |= {server for server, _ in doomed}
            log.warning("all links cut: a key was revoked or a leaf moved", keys=len(gone))
            self._unconfirmed |= await self._cut(doomed)
        if self._unconfirmed or (gone and not complete):
            return
        if before != self._keys:
            await self._store.save_let_in(self._keys)
        self._compared = True

    async def _cut(self, links: Collection[LinkId]) -> set[LinkId]:
        """Cut links; returns unconfirmed ones."""
        nc = self._nc
        if nc is None:
            return set()

        async def cut(link: LinkId) -> bool:
            server, number = link
            if not self._leads():
                return False
            body = json.dumps({"cid": number}).encode()
            try:
                answer = await nc.request(KICK.format(server), body, timeout=_SECONDS)
            except (nats.errors.Error, TimeoutError) as error:
                self._failures.report(
                    log.error, "link not cut yet", server=server, reason=str(error) or "no answer"
                )
                return False
            return "error" not in json.loads(answer.data)

        asked = list(links)
        done = await bounded_gather(cut, asked)
        return {link for link, confirmed in zip(asked, done, strict=True) if not confirmed}
