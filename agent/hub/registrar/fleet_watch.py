"""Watches leaf links over the system account, and has sources checked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.wait import Pacer, event_within, loop_time
from agent.contract import ContractError, server_name
from agent.hub.registrar.aggregate import ALIVE
from agent.hub.registrar.aggregates import Aggregates
from agent.hub.registrar.fleet_events import (
    CONNECT,
    DISCONNECT,
    LEAFZ,
    LinkEvent,
    LinkId,
    Links,
    ServerLink,
    parse_event,
    parse_links,
)
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.link_cutter import LinkCutter
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.quota import Quota, sentence

_LEAFZ_SECONDS: Final = 2.0
_TRAFFIC_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 0.2
_PENDING: Final = 65_536
_ABOUT: Final = "system account"


class LinkedAccounts(Struct, frozen=True):
    """Accounts and keys of links."""

    keys: Mapping[str, str]
    """Domains by public key."""
    telemetry: Collection[str]
    """Accounts of telemetry."""
    users: Collection[str] = ()
    """Users' accounts: cut, not watched."""
    servers: int = 1
    """Number of hub servers."""


class FleetWatch:
    """Knows linked leaves; `cutter` ends revoked links, `quota` counts bytes."""

    def __init__(
        self,
        nc: Client | None,
        accounts: LinkedAccounts,
        fleet: FleetState,
        aggregates: Aggregates,
        problems: ActiveProblems,
        cutter: LinkCutter,
        quota: Quota | None = None,
    ) -> None:
        self.links = Links()
        self._nc = nc
        self._fleet = fleet
        self._aggregates = aggregates
        self._problems = problems
        self._cutter = cutter
        self._accounts = accounts
        self._quota = quota
        self._linked_at: dict[str, float] = {}
        self._look = asyncio.Event()

    def linked_at(self, domain: str) -> float:
        """Return the newest link's monotonic time, 0 if unknown."""
        return self._linked_at.get(domain, 0.0)

    def announced(self, domain: str, machine: str) -> None:
        """Note a leaf's domain and machine."""
        self.links.named(server_name(domain, machine), domain)

    def look(self) -> None:
        """Request links after a change of fleet or server."""
        self._look.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._nc is None:
            return
        for account in self._accounts.telemetry:
            for subject in (CONNECT, DISCONNECT):
                await self._nc.subscribe(
                    subject.format(account), cb=self._on_event, pending_msgs_limit=_PENDING
                )
        while True:
            asked = await self._due()
            self._look.clear()
            try:
                await self._ask(self._nc, compare=asked)
            except (nats.errors.Error, TimeoutError, ContractError) as error:
                self._problems.begin(
                    _ABOUT, f"the hub's server does not say which leaves are linked: {error}", hub=True
                )
                self._look.set()
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self._problems.end(_ABOUT, "the hub's server says which leaves are linked")
                if not self._cutter.settled:
                    self._look.set()
                    await asyncio.sleep(_AGAIN_SECONDS)

    async def _due(self) -> bool:
        """Wait for a look (True) or a traffic count (False)."""
        return await event_within(self._look, None if self._quota is None else _TRAFFIC_SECONDS)

    async def _ask(self, nc: Client, *, compare: bool) -> None:
        domains, pacer = dict[str, str](), Pacer()
        for leaf in list(self._fleet.leaves.values()):
            domains[server_name(leaf.domain, leaf.machine)] = leaf.domain
            await pacer.give_way()
        links, complete = await self._links(nc)
        if compare:
            await self._cutter.settle(links, complete=complete)
        links = {link: up for link, up in links.items() if up.account in self._accounts.telemetry}
        await pacer.give_way()
        self.links.replace(links, domains)
        if self._quota is not None:
            self._count(self._quota, links)
        if not compare:
            return
        # Nothing says that these links are new, so a source that was heard lately is well.
        since = loop_time() - ALIVE
        linked = self.links.domains()
        for domain in list(self._fleet.leaves):
            await pacer.give_way()
            if domain in linked:
                self._aggregates.linked(domain, since)
            else:
                self._aggregates.unlinked(domain)

    async def _links(self, nc: Client) -> tuple[dict[LinkId, ServerLink], bool]:
        """Return answering servers' links, and whether complete."""
        inbox, answers = nc.new_inbox(), list[dict[LinkId, ServerLink]]()
        answered = asyncio.Event()

        async def take(msg: Msg) -> None:
            answers.append(parse_links(msg.data, [*self._accounts.telemetry, *self._accounts.users]))
            if len(answers) == self._accounts.servers:
                answered.set()

        subscription = await nc.subscribe(inbox, cb=take)
        try:
            await nc.publish(LEAFZ, b"", reply=inbox)
            if not await event_within(answered, _LEAFZ_SECONDS) and not answers:
                raise TimeoutError
        finally:
            if not nc.is_closed:
                await subscription.unsubscribe()
        links = {link: up for answer in answers for link, up in answer.items()}
        return links, len(answers) >= self._accounts.servers

    def _count(self, quota: Quota, links: Mapping[LinkId, ServerLink]) -> None:
        now = loop_time()
        quota.count({link: up.received for link, up in links.items()}, self.links.by_link(), now)
        self._judge(quota, now)

    def _judge(self, quota: Quota, now: float, domains: Collection[str] | None = None) -> None:
        begun, ended = quota.changed(now, domains)
        for domain in begun:
            self._aggregates.capped(domain)
        for domain in ended:
            self._aggregates.allowed(domain)
            self._problems.end(f"quota of {domain}", f"{domain} may send again")
        for domain in begun:
            words = sentence(domain, quota.sent(domain, now), quota.limit)
            self._problems.begin(f"quota of {domain}", words)

    async def _on_event(self, msg: Msg) -> None:
        try:
            event = parse_event(msg.data)
        except ContractError as error:
            self._problems.begin(_ABOUT, str(error), hub=True)
            return
        if event is None:
            return
        if msg.subject.endswith(".CONNECT"):
            if await self._cutter.refuses(event):
                if not self._cutter.settled:
                    self._look.set()
                return
            self._connected(event)
        else:
            self._disconnected(event)
        self._compare(self._accounts.keys.get(event.user))

    def _connected(self, event: LinkEvent) -> None:
        domain = self._accounts.keys.get(event.user)
        if domain is None:
            return
        self.links.connected(event, domain)
        self._linked_at[domain] = now = loop_time()
        self._aggregates.linked(domain, now)

    def _disconnected(self, event: LinkEvent) -> None:
        domain, quota = self._accounts.keys.get(event.user), self._quota
        if quota is not None and domain is not None:
            now = loop_time()
            quota.ended(event.link, domain, event.sent, now)
            self._judge(quota, now, [domain])
        if (gone := self.links.disconnected(event)) is not None:
            self._aggregates.unlinked(gone)

    def _compare(self, domain: str | None) -> None:
        if domain is None:
            return
        servers, about = sorted(self.links.servers(domain)), f"links of {domain}"
        if len(servers) > 1:
            self._problems.begin(
                about,
                f"{' and '.join(servers)} are linked as {domain} at once: one is half open and goes within "
                f"20 s, or two machines have one domain and one key",
            )
        else:
            self._problems.end(about, f"one server is linked as {domain}")
