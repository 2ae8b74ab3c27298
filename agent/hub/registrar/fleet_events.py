"""Which leaves are linked, from the system account of the hub's server.

Events name the user of a link, which is the public key that the configuration gives a domain; the list of
links (LEAFZ) names only servers, which the fleet's records know by domain and machine. Pure: reads what came,
asks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from agent.contract import ACCOUNT, CHECK_SERVER, ContractError

CONNECT: Final = "$SYS.ACCOUNT.{}.CONNECT"
DISCONNECT: Final = "$SYS.ACCOUNT.{}.DISCONNECT"
LEAFZ: Final = "$SYS.REQ.SERVER.PING.LEAFZ"

LinkId = tuple[str, int]
"""The identity of a hub server and its number of the link."""


class LinkEvent(Struct, frozen=True):
    """A leaf's server came or went."""

    link: LinkId
    user: str
    """The public key of the link."""
    server: str
    """The name of the leaf's server."""
    reason: str
    """Why it went."""
    sent: int = 0
    """Bytes that it had sent when it went."""


def parse_event(data: bytes) -> LinkEvent | None:
    """An event of the system account, None where it is not about a leaf, or about one that only looks.
    Raises `ContractError`."""
    try:
        event = json.loads(data)
        client = event["client"]
        if client.get("kind") != "Leafnode" or client.get("name", "").startswith(CHECK_SERVER):
            return None
        return LinkEvent(
            (event["server"]["id"], client["id"]),
            client.get("user", ""),
            client.get("name", ""),
            event.get("reason", ""),
            int((event.get("sent") or {}).get("bytes", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"system event {data[:160]!r} is not understood: {error!r}") from None


class _Leaf(Struct):
    id: int
    name: str = ""
    account: str = ""
    in_bytes: int = 0


class _Leafs(Struct):
    server_id: str
    leafs: list[_Leaf] | None = None


class _Answer(Struct):
    data: _Leafs


_LEAFZ: Final = msgspec.json.Decoder(_Answer)
"""Only what is needed of megabytes."""


class ServerLink(Struct, frozen=True):
    """A link of the list."""

    server: str
    """The name of the leaf's server."""
    received: int
    """Bytes that came from it so far."""
    account: str = ACCOUNT
    """The account that it joins."""


def parse_links(data: bytes, accounts: Collection[str] = (ACCOUNT,)) -> dict[LinkId, ServerLink]:
    """All links to these accounts in an answer to LEAFZ. Raises `ContractError`."""
    try:
        answer = _LEAFZ.decode(data).data
        return {
            (answer.server_id, leaf.id): ServerLink(leaf.name, leaf.in_bytes, leaf.account)
            for leaf in answer.leafs or ()
            if leaf.account in accounts
        }
    except ValueError as error:
        raise ContractError(f"LEAFZ answer {data[:160]!r} is not understood: {error!r}") from None


class Links:
    """The links that are up, by domain. One link costs as much in a large fleet as in a small one."""

    def __init__(self) -> None:
        self._up: dict[LinkId, tuple[str, str]] = {}
        self._servers: dict[str, dict[LinkId, str]] = {}
        self._nameless: dict[LinkId, str] = {}
        self._nameless_of: dict[str, set[LinkId]] = {}

    def replace(self, links: Mapping[LinkId, ServerLink], domains: Mapping[str, str]) -> None:
        """These links are all there are; `domains` gives the domain of a server name, for a link without an
        event."""
        for link in self._up.keys() - links.keys():
            self._remove(link)
        self._nameless, self._nameless_of = {}, {}
        for link, up in links.items():
            if link not in self._up:
                self._nameless[link] = up.server
                self._nameless_of.setdefault(up.server, set()).add(link)
        for server in [name for name in self._nameless_of if name in domains]:
            self.named(server, domains[server])

    def named(self, server: str, domain: str) -> None:
        """A server of this name is linked for this domain, if it is linked."""
        for link in self._nameless_of.pop(server, ()):
            del self._nameless[link]
            self._add(link, domain, server)

    def connected(self, event: LinkEvent, domain: str) -> None:
        """A link came up. Its key tells the domain, which a name need not."""
        self._forget_name(event.link)
        self._remove(event.link)
        self._add(event.link, domain, event.server)

    def disconnected(self, event: LinkEvent) -> str | None:
        """A link went down; returns the domain that has none left, if any."""
        self._forget_name(event.link)
        domain = self._remove(event.link)
        return None if domain is None or domain in self._servers else domain

    def servers(self, domain: str) -> set[str]:
        """The names of the servers that are linked for a domain; more than one is a conflict or a link that
        is half open."""
        return set(self._servers.get(domain, {}).values())

    def by_link(self) -> dict[LinkId, str]:
        """The domain of each link."""
        return {link: domain for link, (domain, _) in self._up.items()}

    def domains(self) -> set[str]:
        return set(self._servers)

    def _add(self, link: LinkId, domain: str, server: str) -> None:
        self._up[link] = (domain, server)
        self._servers.setdefault(domain, {})[link] = server

    def _forget_name(self, link: LinkId) -> None:
        server = self._nameless.pop(link, None)
        if server is not None:
            self._nameless_of[server].discard(link)

    def _remove(self, link: LinkId) -> str | None:
        """Forget a link that is up; returns its domain, if it was."""
        if link not in self._up:
            return None
        domain, _ = self._up.pop(link)
        del self._servers[domain][link]
        if not self._servers[domain]:
            del self._servers[domain]
        return domain
