"""Which leaves are linked, by the events and lists of the hub's server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import CHECK_SERVER, ContractError
from agent.hub.registrar.fleet_events import LinkEvent, LinkId, Links, ServerLink, parse_event, parse_links


def event(link: int, user: str = "UA", kind: str = "Leafnode", server: str = "a-m1") -> bytes:
    client = {"id": link, "acc": "PETIOLE", "user": user, "name": server, "kind": kind}
    return json.dumps({"server": {"id": "HUB"}, "client": client, "reason": "Client Closed"}).encode()


def leafz(*links: tuple[int, str]) -> bytes:
    leafs = [{"id": link, "name": name, "account": "PETIOLE", "in_bytes": 7} for link, name in links]
    return json.dumps({"data": {"server_id": "HUB", "leafs": leafs}}).encode()


def test_only_leaves_are_told_of_by_an_event() -> None:
    assert parse_event(event(1, kind="Client")) is None
    assert parse_event(event(1, server=f"{CHECK_SERVER}.0a1b")) is None, "which only looks"
    for broken in (b"", b"[]", b"{}", b'{"client": {"kind": "Leafnode"}}'):
        with pytest.raises(ContractError, match="not understood"):
            parse_event(broken)
        with pytest.raises(ContractError, match="not understood"):
            parse_links(broken)


def test_a_domain_is_linked_until_its_last_link_goes() -> None:
    links = Links()
    first, second = parse_event(event(1)), parse_event(event(2, server="a-m2"))
    assert first is not None
    assert second is not None
    links.connected(first, "a")
    links.connected(second, "a")
    assert links.servers("a") == {"a-m1", "a-m2"}
    assert links.disconnected(first) is None
    assert links.disconnected(second) == "a"
    assert links.disconnected(second) is None
    assert links.domains() == set()


def test_a_link_of_which_no_event_told_is_known_by_its_server_now_or_once_that_announces_itself() -> None:
    links = Links()
    told = parse_event(event(1, server="strange"))
    assert told is not None
    links.connected(told, "a")
    links.replace(parse_links(leafz((1, "strange"), (2, "b-m1"), (3, "c-m1"))), {"b-m1": "b"})
    assert links.domains() == {"a", "b"}
    links.named("c-m1", "c")
    assert links.domains() == {"a", "b", "c"}
    links.replace(parse_links(leafz((2, "b-m1"))), {})
    assert links.domains() == {"b"}


class Walked:
    """The links as `Links` tells them, found by walking through all of them."""

    def __init__(self) -> None:
        self.up: dict[LinkId, tuple[str, str]] = {}
        self.nameless: dict[LinkId, str] = {}

    def replace(self, links: dict[LinkId, ServerLink], domains: dict[str, str]) -> None:
        known = self.up
        self.up = {link: known[link] for link in links if link in known}
        self.nameless = {link: one.server for link, one in links.items() if link not in known}
        for server, domain in domains.items():
            self.named(server, domain)

    def named(self, server: str, domain: str) -> None:
        for link in [link for link, name in self.nameless.items() if name == server]:
            self.up[link] = (domain, self.nameless.pop(link))

    def connected(self, event: LinkEvent, domain: str) -> None:
        self.nameless.pop(event.link, None)
        self.up[event.link] = (domain, event.server)

    def disconnected(self, event: LinkEvent) -> str | None:
        self.nameless.pop(event.link, None)
        domain, _ = self.up.pop(event.link, (None, ""))
        return None if domain is None or any(one == domain for one, _ in self.up.values()) else domain


IDS = st.integers(0, 4).map(lambda number: ("HUB", number))
NAMES = st.sampled_from(["s-m1", "t-m1", "t-m2"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["up", "down", "named"]), IDS, NAMES, st.sampled_from("ab")),
    st.tuples(st.dictionaries(IDS, NAMES), st.dictionaries(NAMES, st.sampled_from("ab"))),
)
"""An event of a link, or all links at once."""


@given(st.lists(STEPS, min_size=1, max_size=25))
def test_the_links_are_those_that_a_walk_through_all_of_them_finds(steps: list[tuple[Any, ...]]) -> None:
    links, walked = Links(), Walked()
    for step in steps:
        match step:
            case "up", link, server, domain:
                event = LinkEvent(link, "", server, "")
                links.connected(event, domain)
                walked.connected(event, domain)
            case "down", link, server, _:
                event = LinkEvent(link, "", server, "")
                assert links.disconnected(event) == walked.disconnected(event)
            case "named", _, server, domain:
                links.named(server, domain)
                walked.named(server, domain)
            case found, domains:
                listed = {link: ServerLink(server, 0) for link, server in found.items()}
                links.replace(listed, domains)
                walked.replace(listed, domains)
        assert links.by_link() == {link: domain for link, (domain, _) in walked.up.items()}
        assert links.domains() == {domain for domain, _ in walked.up.values()}
        for one in "ab":
            assert links.servers(one) == {server for domain, server in walked.up.values() if domain == one}
