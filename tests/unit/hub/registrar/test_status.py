"""What is shown of a fleet: made of what was known at one moment, a leaf at a time, as it is asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from agent.contract import leaf_stream
from agent.hub.registrar.aggregate import Observation
from agent.hub.registrar.records import ClassRecord, LeafRecord
from agent.hub.registrar.status import KnownFleet, fleet_status
from agent.hub.web import FleetPages
from agent.jetstream import StreamInfo
from agent.jetstream.info import CopyStatus

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW = 1_000.0


class Counted(dict[str, LeafRecord]):
    """Records that count how often each is looked at."""

    def __init__(self, records: dict[str, LeafRecord]) -> None:
        super().__init__(records)
        self.looks: Counter[str] = Counter()

    def get(self, domain: str, default: Any = None) -> Any:
        self.looks[domain] += 1
        return super().get(domain, default)

    def __getitem__(self, domain: str) -> LeafRecord:
        self.looks[domain] += 1
        return super().__getitem__(domain)


def fleet(count: int, *, heard: float = 1.0, **more: Any) -> KnownFleet:
    """So many leaves that flow, heard so many seconds ago; the last configured one was never seen."""
    domains = [f"edge-{number}" for number in range(count)]
    records = Counted(
        {
            domain: LeafRecord(domain, "m", "run", {}, "before", {"normal": ClassRecord("e", "c", "T", "c")})
            for domain in domains
        }
    )
    states = {leaf_stream(domain, "normal"): CopyStatus(1, 0.1) for domain in domains}
    info = StreamInfo("T", "c", 1, 1, 1, 1, {}, [])
    known: dict[str, Any] = {
        "domains": [*domains, "new"],
        "leaves": records,
        "announced": {},
        "heard_at": dict.fromkeys(domains, NOW - heard),
        "linked": set(domains),
        "revoked": frozenset(),
        "resting": set(),
        "seen": {"T": Observation(info, states, NOW)},
        "trouble": {},
        "audited": {},
        "now": NOW,
        "at": AT,
    }
    return KnownFleet(**(known | more))


def shown(known: KnownFleet) -> Any:
    """What the status shows of each leaf."""
    return fleet_status(known, {}, None)["leaves"]


def test_each_configured_leaf_is_shown_and_no_other() -> None:
    leaves = shown(fleet(2))
    assert list(leaves) == ["edge-0", "edge-1", "new"]
    assert len(leaves) == 3
    assert {domain: row["word"] for domain, row in leaves.items()} == {
        "edge-0": "flowing",
        "edge-1": "flowing",
        "new": "never",
    }
    assert "other" not in leaves


def test_a_leaf_is_shown_with_what_is_wrong_with_it() -> None:
    known = fleet(3, heard=500.0, trouble={"edge-1": "its disk"}, revoked={"edge-2"})
    leaves = shown(known)
    assert leaves["edge-0"]["word"] == "silent"
    assert (leaves["edge-1"]["word"], leaves["edge-1"]["words"]) == ("trouble", ["trouble", "silent"])
    assert leaves["edge-1"]["state"].startswith("its disk; its server is linked")
    assert leaves["edge-2"]["word"] == "away"
    assert "is revoked" in leaves["edge-2"]["state"]


ALL: dict[str, str] = {
    "losing": "9 of class bulk",
    "held": "class normal: its stream is full",
    "input_down": "input plc",
    "not_arriving": "class bulk, message 9 (60000 bytes), 3 links in a row",
    "clock_wrong": "2 years ahead of",
}


def announcing(states: dict[str, str], **more: Any) -> Any:
    """What is shown of a leaf that flows and has announced these states."""
    known = fleet(1, **more)
    leaf = known.leaves["edge-0"]
    changed = msgspec.structs.replace(leaf, states=states)
    return shown(replace(known, leaves={"edge-0": changed}))["edge-0"]


@pytest.mark.parametrize("word", ALL)
def test_what_a_leaf_says_of_itself_is_graver_than_that_its_data_flows(word: str) -> None:
    row = announcing({word: ALL[word]})
    assert (row["word"], row["words"]) == (word, [word])
    assert ALL[word] in row["state"]
    assert announcing({})["word"] == "flowing"


def test_a_leaf_with_several_states_has_the_word_of_the_gravest_and_the_sentences_of_all() -> None:
    row = announcing(dict(reversed(ALL.items())))
    assert row["words"] == ["losing", "held", "input_down", "not_arriving", "clock_wrong"]
    assert all(about in row["state"] for about in ALL.values())


def test_what_a_leaf_says_of_itself_holds_while_it_is_heard() -> None:
    assert announcing(ALL, heard=500.0)["words"] == ["silent"]
    assert announcing(ALL, linked=(), seen={})["words"] == ["away"]
    assert announcing(ALL, trouble={"edge-0": "why"})["words"][:2] == ["losing", "trouble"]


def test_a_refused_leaf_has_the_reason_of_the_hub_and_one_that_is_paused_or_capped_is_not_stopped() -> None:
    row = fleet_status(fleet(1, refused={"edge-0": "its class"}), {}, None)["leaves"]["edge-0"]
    assert (row["word"], row["state"]) == ("refused", "its class")
    assert announcing({}, seen={})["word"] == "stopped"
    assert announcing({"paused": "class normal"}, seen={})["words"] == ["paused"]
    capped = announcing({}, seen={}, capped={"edge-0": "it has sent 9 bytes"})
    assert (capped["words"], capped["state"]) == (["capped"], "it has sent 9 bytes")


def test_a_leaf_that_has_announced_itself_is_shown_with_the_time_by_the_clock_of_the_hub() -> None:
    known = fleet(1, heard=90.0, announced={"edge-0": None})
    assert known.announced_at("edge-0") == "2026-01-01T11:58:30+00:00"
    assert fleet(1).announced_at("edge-0") == "before"
    assert known.announced_at("new") == ""


def pages(known: KnownFleet) -> FleetPages:
    """The pages of a fleet that no audit has seen."""
    return FleetPages(lambda: {"fleet": fleet_status(known, {}, None)}, lambda _: None)


async def test_the_page_of_a_leaf_looks_at_no_other() -> None:
    known = fleet(50)
    page = await pages(known).answer("/fleet/edge-7", {})
    assert page is not None
    assert page.status == 200
    assert set(looks(known)) == {"edge-7"}


@pytest.mark.parametrize("path", ["/fleet", "/fleet.json"])
async def test_a_page_of_all_leaves_looks_as_often_at_each_of_many_as_of_few(path: str) -> None:
    counts = []
    for count in (20, 40, 80):
        known = fleet(count)
        assert not looks(known), "nothing is made before it is asked for"
        await pages(known).answer(path, {})
        del looks(known)["new"]
        counts.append(set(looks(known).values()))
    assert counts[0] == counts[1] == counts[2]


def looks(known: KnownFleet) -> Counter[str]:
    """How often each leaf's record was looked at."""
    assert isinstance(known.leaves, Counted)
    return known.leaves.looks
