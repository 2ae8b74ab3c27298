"""Tracks linked leaves by system events and LEAFZ. Pure.

Events name the link's key, hence the domain; LEAFZ names servers, known by records.
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
"""Hub server id and link number."""


class LinkEvent(Struct, frozen=True):
    """A link change."""

    link: LinkId
    user: str
    """The link's public key."""
    server: str
    """The leaf's server."""
    reason: str
    """Why it ended."""
    sent: int = 0
    """Bytes it had sent."""


def parse_event(data: bytes) -> LinkEvent | None:
    """Parse an event, None if not of a leaf. Raises `ContractError`."""
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
"""The needed part of megabytes."""


class ServerLink(Struct, frozen=True):
    """A listed link."""

    server: str
    """The leaf's server."""
    received: int
    """Bytes received so far."""
    account: str = ACCOUNT
    """Its account."""


def parse_links(data: bytes, accounts: Collection[str] = (ACCOUNT,)) -> dict[LinkId, ServerLink]:
    """Parse LEAFZ for these accounts. Raises `ContractError`."""
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
    """Present links by domain, in constant time each."""

    def __init__(self) -> None:
        self._up: dict[LinkId, tuple[str, str]] = {}
        self._servers: dict[str, dict[LinkId, str]] = {}
        self._nameless: dict[LinkId, str] = {}
        self._nameless_of: dict[str, set[LinkId]] = {}

    def replace(self, links: Mapping[LinkId, ServerLink], domains: Mapping[str, str]) -> None:
        """Set all links; `domains` maps server names."""
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
        """Assign a server's link to a domain."""
        for link in self._nameless_of.pop(server, ()):
            del self._nameless[link]
            self._add(link, domain, server)

    def connected(self, event: LinkEvent, domain: str) -> None:
        """Add a link; its key gives the domain."""
        self._forget_name(event.link)
        self._remove(event.link)
        self._add(event.link, domain, event.server)

    def disconnected(self, event: LinkEvent) -> str | None:
        """Remove a link; returns a domain without links."""
        self._forget_name(event.link)
        domain = self._remove(event.link)
        return None if domain is None or domain in self._servers else domain

    def servers(self, domain: str) -> set[str]:
        """Return a domain's servers; several mean conflict or half-open links."""
        return set(self._servers.get(domain, {}).values())

    def by_link(self) -> dict[LinkId, str]:
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
        if link not in self._up:
            return None
        domain, _ = self._up.pop(link)
        del self._servers[domain][link]
        if not self._servers[domain]:
            del self._servers[domain]
        return domain
