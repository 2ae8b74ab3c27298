"""Which leaves are linked, from the system account of the hub's server.

Events name the user of a link, which is the public key that the configuration gives a domain; the list of
links (LEAFZ) names only servers, which the fleet's records know by domain and machine. Pure: reads what came,
asks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.contract import ACCOUNT, CHECK_SERVER, ContractError

CONNECT: Final = "$SYS.ACCOUNT.{}.CONNECT"
DISCONNECT: Final = "$SYS.ACCOUNT.{}.DISCONNECT"
LEAFZ: Final = "$SYS.REQ.SERVER.PING.LEAFZ"

LinkId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A leaf's server came or went: which link of which hub server, as which user, under which name."""

    link: LinkId
    user: str
    server: str
    reason: str


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
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"system event {data[:160]!r} is not understood: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the list: the name of the leaf's server, the bytes that came from it so far, and the account
    that it joins."""

    server: str
    received: int
    account: str = ACCOUNT


def parse_links(data: bytes, accounts: Collection[str] = (ACCOUNT,)) -> dict[LinkId, Link]:
    """All links to these accounts in an answer to LEAFZ. Raises `ContractError`."""
    try:
        answer: Mapping[str, Any] = json.loads(data)["data"]
        return {
            (answer["server_id"], one["id"]): Link(one["name"], int(one.get("in_bytes", 0)), one["account"])
            for one in answer.get("leafs") or []
            if one.get("account") in accounts
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"LEAFZ answer {data[:160]!r} is not understood: {error!r}") from None


class Links:
    """The links that are up, by domain."""

    def __init__(self) -> None:
        self._up: dict[LinkId, tuple[str, str]] = {}
        self._nameless: dict[LinkId, str] = {}

    def replace(self, links: Mapping[LinkId, Link], domains: Mapping[str, str]) -> None:
        """These links are all there are; `domains` gives the domain of a server name, for a link of which no
        event told."""
        known = self._up
        self._up = {link: known[link] for link in links if link in known}
        self._nameless = {link: one.server for link, one in links.items() if link not in known}
        for server, domain in domains.items():
            self.named(server, domain)

    def named(self, server: str, domain: str) -> None:
        """A server of this name is linked for this domain, if it is linked."""
        for link in [link for link, name in self._nameless.items() if name == server]:
            self._up[link] = (domain, self._nameless.pop(link))

    def connected(self, event: LinkEvent, domain: str) -> None:
        """A link came up."""
        self._up[event.link] = (domain, event.server)

    def disconnected(self, event: LinkEvent) -> str | None:
        """A link went down; returns the domain that has none left, if any."""
        self._nameless.pop(event.link, None)
        domain, _ = self._up.pop(event.link, (None, ""))
        return None if domain is None or self.servers(domain) else domain

    def servers(self, domain: str) -> set[str]:
        """The names of the servers that are linked for a domain; more than one is a conflict or a link that
        is half open."""
        return {server for one, server in self._up.values() if one == domain}

    def by_link(self) -> dict[LinkId, str]:
        """The domain of each link."""
        return {link: domain for link, (domain, _) in self._up.items()}

    def domains(self) -> set[str]:
        """The domains that are linked."""
        return {domain for domain, _ in self._up.values()}
