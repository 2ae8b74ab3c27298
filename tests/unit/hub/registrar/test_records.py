"""Whom the registrar takes in, what it remembers, and who is linked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import (
    CHECK_SERVER,
    Announce,
    Checkpoint,
    ClassState,
    ContractError,
    FleetRecord,
    new_run,
    parse_fleet_record,
)
from agent.hub.registrar.active_problems import ActiveProblems
from agent.hub.registrar.aggregate import observed, source
from agent.hub.registrar.fleet_events import LinkEvent, LinkId, Links, ServerLink, parse_event, parse_links
from agent.hub.registrar.fleet_state import Allowance, FleetState
from agent.hub.registrar.records import (
    FRESH,
    POWER_CUT,
    AggregateRef,
    ClassRecord,
    HubPosition,
    LeafRecord,
    PurgeMarker,
    admitted,
    decode_leaf,
    decode_noted,
    encode,
    new_epochs,
    refusal,
)
from agent.jetstream import StreamInfo

RUN = new_run()
CREATED = "2026-01-01T00:00:00Z"
AGGREGATE = ("TELEMETRY_0", CREATED)
HELD = HubPosition(9, "id", 50, 60)
CHECKPOINT = Checkpoint(9, "id", "TELEMETRY_0", 50)
EPOCH = "0000000000000"


def announce(
    epoch: str = EPOCH, created: str = CREATED, machine: str = "m1", cls: str = "normal"
) -> Announce:
    return Announce("a", machine, RUN, {}, {cls: ClassState(epoch, created, 1, 9, 0, 100)})


def leaf(**changes: Any) -> LeafRecord:
    record = msgspec.structs.replace(ClassRecord(EPOCH, CREATED, *AGGREGATE, HELD, CHECKPOINT), **changes)
    return LeafRecord("a", "m1", RUN, {"agent": "1"}, CREATED, {"normal": record})


@pytest.mark.parametrize(
    ("said", "classes", "known", "heard_ago", "words"),
    [
        (announce(), ["normal"], None, 0, None),
        (announce(), ["normal"], leaf(), 0, None),
        (announce(machine="m2"), ["normal"], leaf(), FRESH, None),
        (announce(machine="m2"), ["normal"], leaf(), FRESH - 1, "belongs to machine m1"),
        (announce(), None, None, 0, "is not among the leaves in the hub's configuration"),
        (announce(cls="bulk"), ["normal"], None, 0, "class 'bulk' of 'a' is not in the hub's configuration"),
    ],
)
def test_a_leaf_is_taken_in_or_told_why_not(
    said: Announce, classes: list[str] | None, known: LeafRecord | None, heard_ago: float, words: str | None
) -> None:
    refused = refusal(said, classes, known, heard_ago)
    assert refused is None if words is None else words in (refused or "")


@pytest.mark.parametrize(
    ("said", "aggregate", "held", "checkpoint", "lost"),
    [
        (announce(), AGGREGATE, HELD, CHECKPOINT, ""),
        (announce(epoch="1111111111111"), AGGREGATE, None, CHECKPOINT, ""),
        (announce(created="2026-02-02T00:00:00Z"), AGGREGATE, None, CHECKPOINT, "TEL_a_normal was recreated"),
        (announce(), ("TELEMETRY_0", "2026-02-02T00:00:00Z"), None, None, "TELEMETRY_0 was recreated"),
        (announce(epoch="1111111111111"), ("TELEMETRY_0", "2026-02-02T00:00:00Z"), None, None, ""),
    ],
    ids=[
        "the same link",
        "new epoch",
        "the leaf's stream was made anew",
        "the aggregate was made anew",
        "and a new epoch",
    ],
)
def test_what_the_hub_held_is_remembered_only_of_the_same_link(
    said: Announce,
    aggregate: tuple[str, str],
    held: HubPosition | None,
    checkpoint: Checkpoint | None,
    lost: str,
) -> None:
    places = {"normal": AggregateRef(*aggregate, last=70)}
    record = admitted(said, leaf(), places, CREATED).classes["normal"]
    assert (record.held, record.checkpoint, record.lost) == (held, checkpoint, lost)
    assert record.known_to == (60 if held else 70)


def acked(seq: int, checkpoint: Checkpoint | None = None) -> Announce:
    """An epoch of which the hub has acknowledged so much."""
    states = {"normal": ClassState("1111111111111", CREATED, 1, 9, 0, 100, acked=seq)}
    return Announce("a", "m1", RUN, {}, states, {} if checkpoint is None else {"normal": checkpoint})


@pytest.mark.parametrize(
    ("known", "checkpoint", "lost"),
    [
        (leaf(boot="before"), None, True),
        (leaf(boot="now"), None, False),
        (leaf(boot="before", lost="so the leaf began at what was agreed on"), None, False),
        (leaf(boot="before", created="2026-02-02T00:00:00Z"), None, False),
        (None, CHECKPOINT, True),
        (None, None, False),
    ],
    ids=["before a boot", "since", "in answer to it", "of another stream", "not remembered", "the first"],
)
def test_an_epoch_that_was_begun_before_the_hub_was_without_power_is_lost(
    known: LeafRecord | None, checkpoint: Checkpoint | None, lost: bool
) -> None:
    places = {"normal": AggregateRef(*AGGREGATE, last=70)}
    record = admitted(acked(0, checkpoint), known, places, CREATED, "now").classes["normal"]
    assert (record.boot, record.lost) == ("now", POWER_CUT if lost else "")


@pytest.mark.parametrize(
    ("said", "known", "lost"),
    [
        (acked(0), None, False),
        (acked(9), None, True),
        (acked(9), leaf(), True),
        (acked(9, CHECKPOINT), None, False),
        (acked(9), leaf(epoch="1111111111111"), False),
    ],
    ids=["begins", "no record", "a record of an epoch before", "with a checkpoint to check", "known"],
)
def test_an_epoch_is_lost_whose_acknowledged_messages_the_records_do_not_know(
    said: Announce, known: LeafRecord | None, lost: bool
) -> None:
    places = {"normal": AggregateRef(*AGGREGATE, last=70)}
    record = admitted(said, known, places, CREATED).classes["normal"]
    assert bool(record.lost) is lost


def test_what_both_agreed_on_is_carried_into_a_new_epoch_in_the_same_aggregate_only() -> None:
    known = leaf(proposed=CHECKPOINT, cut=3)
    said, anew = announce(epoch="1111111111111"), "2026-02-02T00:00:00Z"
    same = admitted(said, known, {"normal": AggregateRef(*AGGREGATE, last=70)}, CREATED).classes["normal"]
    assert (same.checkpoint, same.proposed, same.cut) == (CHECKPOINT, CHECKPOINT, 3)
    other = admitted(said, known, {"normal": AggregateRef("TELEMETRY_0", anew, last=70)}, CREATED)
    assert other.classes["normal"].proposed is None
    assert other.classes["normal"].cut == 0, "of what was agreed on before nothing is known to be there"


def test_what_a_copied_machine_may_have_mixed_in_is_no_place_to_fall_back_to() -> None:
    fleet = fleet_of(observation(60, 9), proposed=CHECKPOINT)
    fleet.lose("a", "a copy of its machine sent through it too")
    record = fleet.leaves["a"].classes["normal"]
    assert (bool(record.lost), record.proposed) == (True, None)


def test_a_class_has_a_new_epoch_when_it_is_new_or_another_one() -> None:
    assert new_epochs(leaf(), None) == ["normal"]
    assert new_epochs(leaf(epoch="1111111111111"), leaf()) == ["normal"]
    assert new_epochs(leaf(), leaf()) == []


def test_a_record_is_read_back_as_it_was_written() -> None:
    assert decode_leaf(encode(leaf())) == leaf()
    assert json.loads(encode(leaf()))["v"] == 1
    assert decode_noted(encode(PurgeMarker(*AGGREGATE, 9))) == PurgeMarker(*AGGREGATE, 9)


def test_the_record_says_to_the_jobs_what_the_leaf_announced_and_what_the_hub_held() -> None:
    places = {"normal": AggregateRef(*AGGREGATE, last=70)}
    said = announce()

    record = parse_fleet_record(encode(admitted(said, leaf(), places, CREATED)))

    assert record == FleetRecord("a", CREATED, said.classes, {"normal": HELD.seq})
    older = parse_fleet_record(encode(leaf()).replace(b'"said":{},', b""))
    assert (older.classes, older.held) == ({}, {"normal": HELD.seq}), "written before leaves' words were kept"
    with pytest.raises(ContractError, match="fleet record"):
        parse_fleet_record(encode(leaf()).replace(b'"seq":9', b'"seq":-9'))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"domain": "\x80"}', encode(leaf()).replace(b'"v":1', b'"v":2')]
)
def test_a_record_that_cannot_be_read_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(ContractError, match="fleet record"):
        decode_leaf(data)


def observation(last: int, seq: int, created: str = CREATED, first: int = 1, epoch: str = EPOCH) -> Any:
    sources = [{"name": "TEL_a_normal", "active": -1, "seq": seq}]
    config = {"sources": [source("a", "normal", epoch)]}
    return observed(StreamInfo("TELEMETRY_0", created, first, last, last, 0, config, sources), 0.0)


def fleet_of(seen: Any, now: float = 0.0, noted: int = 0, **record: Any) -> FleetState:
    fleet = FleetState()
    all_noted = {"TELEMETRY_0": PurgeMarker(*AGGREGATE, noted)} if noted else {}
    asyncio.run(fleet.begin({"a": leaf(**record)}, all_noted, {"TELEMETRY_0": seen}, now))
    return fleet


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        (observation(60, 9), HELD),
        (observation(60, 0), HELD),
        (observation(59, 9), None),
        (observation(60, 8), None),
        (observation(60, 9, "2026-02-02T00:00:00Z"), None),
    ],
    ids=["as it was", "purged", "the stream was put back", "the source was put back", "made anew"],
)
def test_a_fleet_that_is_read_back_believes_only_what_the_stream_allows(
    seen: Any, held: HubPosition | None
) -> None:
    fleet = fleet_of(seen)
    assert fleet.leaves["a"].classes["normal"].held == held


def test_a_machine_that_was_read_back_counts_as_heard_but_is_not_refreshed_by_a_reconnect() -> None:
    fleet = FleetState()
    for now in (100.0, 130.0):
        asyncio.run(fleet.begin({"a": leaf()}, {}, {"TELEMETRY_0": observation(60, 9)}, now))
    assert fleet.ownership.heard_ago("a", 140.0) == 40.0
    assert fleet.ownership.heard_ago("unknown", 140.0) == float("inf")


def test_what_a_source_holds_is_noted_before_it_is_changed() -> None:
    fleet = fleet_of(observation(60, 9))
    fleet.note(observation(70, 12))
    assert fleet.leaves["a"].classes["normal"].held == HubPosition(12, "", 0, 70)


def test_what_a_source_holds_of_an_epoch_before_is_not_counted_for_this_one() -> None:
    fleet = fleet_of(observation(60, 9), held=None, since=60)
    fleet.note(observation(70, 12, epoch="1111111111111"))
    assert fleet.leaves["a"].classes["normal"].held is None


@pytest.mark.parametrize(
    ("first", "seq", "noted", "record", "certain"),
    [
        (1, 0, 0, {}, True),
        (61, 0, 0, {}, True),
        (62, 0, 0, {}, False),
        (62, 9, 0, {}, True),
        (62, 0, 61, {}, True),
        (63, 0, 61, {}, False),
        (62, 0, 61, {"unsure": True}, False),
        (11, 0, 0, {"held": None, "since": 10}, True),
        (12, 0, 0, {"held": None, "since": 10}, False),
    ],
)
def test_a_cursor_is_certain_unless_something_may_have_been_purged_unseen(
    first: int, seq: int, noted: int, record: dict[str, Any], certain: bool
) -> None:
    seen = observation(100, seq, first=first)
    fleet = fleet_of(seen, noted=noted, **record)
    normal = fleet.leaves["a"].classes["normal"]
    assert fleet.certain(normal, seen.states["TEL_a_normal"], seen.info) is certain
    fleet.note(seen)
    assert fleet.leaves["a"].classes["normal"].unsure is not certain
    fleet.purging(PurgeMarker(*AGGREGATE, 100))
    again = fleet.leaves["a"].classes["normal"]
    assert fleet.certain(again, None, seen.info) is certain


@given(gaps=st.lists(st.floats(0, 5), max_size=60), at_once=st.integers(1, 5))
def test_an_allowance_is_never_exceeded(gaps: list[float], at_once: int) -> None:
    allowance, now, taken = Allowance(at_once, 2.0), 0.0, 0
    for gap in gaps:
        now += gap
        taken += allowance.take(now)
    assert taken <= at_once + now / 2.0


def test_an_allowance_comes_back_with_time() -> None:
    allowance = Allowance(2, 10.0)
    assert [allowance.take(now) for now in (0.0, 0.0, 0.0, 9.0, 10.0, 11.0, 20.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


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


def test_what_is_wrong_with_the_hub_is_kept_however_many_leaves_are_in_trouble() -> None:
    with structlog.testing.capture_logs():
        problems = ActiveProblems()
        for number in range(10_001):
            problems.begin(f"leaf {number}", "broken")
        assert problems.of("leaf 10000") is None, "of leaves, so many are kept"
        problems.begin("leaf 0", "broken otherwise")
        assert problems.of("leaf 0") == "broken otherwise"
        problems.begin("server", "too old", hub=True)
        assert problems.of("server") == "too old"


def test_a_problem_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    with structlog.testing.capture_logs() as logs:
        problems = ActiveProblems()
        problems.end("x", "was never there")
        problems.begin("x", "broken")
        problems.begin("x", "broken")
        problems.begin("x", "broken otherwise")
        problems.end("x", "well")
        problems.end("x", "well")
    assert [one["event"] for one in logs] == ["broken", "broken otherwise", "well"]


def test_an_aggregate_has_the_sources_of_the_leaves_that_are_kept_there() -> None:
    fleet = FleetState()
    fleet.keep(leaf())
    assert fleet.sources("TELEMETRY_0").keys() == {"TEL_a_normal"}
    fleet.keep(leaf(stream="TELEMETRY_1"))
    assert not fleet.sources("TELEMETRY_0")
    assert fleet.sources("TELEMETRY_1").keys() == {"TEL_a_normal"}
    assert fleet.load(["TELEMETRY_0", "TELEMETRY_1"]) == {"TELEMETRY_0": 0, "TELEMETRY_1": 1}
    assert [cls for _, cls, _ in fleet.records("TELEMETRY_1")] == ["normal"]
    fleet.keep(msgspec.structs.replace(leaf(), classes={}))
    assert not fleet.sources("TELEMETRY_1")
