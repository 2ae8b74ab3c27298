"""What the registrar believes of its records."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agent.hub.registrar.aggregate import observed, source
from agent.hub.registrar.fleet_state import FleetState, spread_seconds
from agent.hub.registrar.records import HubPosition, PurgeMarker
from agent.jetstream import StreamInfo
from tests.unit.hub.registrar.test_records import AGGREGATE, CHECKPOINT, CREATED, EPOCH, HELD, leaf


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


def test_what_a_copied_machine_may_have_mixed_in_is_no_place_to_fall_back_to() -> None:
    fleet = fleet_of(observation(60, 9), proposed=CHECKPOINT)
    fleet.lose("a", "a copy of its machine sent through it too")
    record = fleet.leaves["a"].classes["normal"]
    assert (bool(record.lost), record.proposed) == (True, None)


@pytest.mark.parametrize(
    ("leaves", "seconds"),
    [(1, 0), (1_999, 0), (2_000, 10), (2_001, 20), (4_000, 40), (10_000, 320), (10**6, 2560)],
)
def test_the_time_for_all_links_at_once_grows_with_the_square_of_their_number(
    leaves: int, seconds: float
) -> None:
    assert spread_seconds(leaves) == seconds


def test_links_of_one_cell_cost_those_of_another_little() -> None:
    assert spread_seconds(*[200] * 20) == 0.0
    assert spread_seconds(*[200] * 50) == 40.0
