"""Whom the registrar takes in, and what it remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent.contract import (
    Announce,
    Checkpoint,
    ClassState,
    ContractError,
    FleetRecord,
    new_run,
    parse_fleet_record,
)
from agent.hub.registrar.records import (
    FRESH,
    MOST_MADE,
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
    refused_classes,
)

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


def test_a_class_remembers_in_which_aggregate_it_was_before_its_leaf_moved_to_another_cell() -> None:
    place = {"normal": AggregateRef("TELEMETRY_4_0", "2026-02-02T00:00:00Z", last=70)}
    moved = admitted(announce(epoch="1111111111111"), leaf(), place, CREATED)
    again = admitted(announce(epoch="2222222222222"), moved, place, CREATED)
    assert {one.classes["normal"].before for one in (moved, again)} == {AGGREGATE[0]}
    assert leaf().classes["normal"].before == ""


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
    with pytest.raises(ContractError, match="fleet record"):
        parse_fleet_record(encode(leaf()).replace(b'"seq":9', b'"seq":-9'))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"domain": "\x80"}', encode(leaf()).replace(b'"v":1', b'"v":2')]
)
def test_a_record_that_cannot_be_read_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(ContractError, match="fleet record"):
        decode_leaf(data)


def test_a_class_that_is_announced_no_more_stays_known_while_the_hub_lacks_messages_of_it() -> None:
    places = {cls: AggregateRef(*AGGREGATE, last=70) for cls in ("normal", "bulk")}
    before = admitted(announce(), leaf(), places, CREATED)
    assert [*admitted(announce(cls="bulk"), before, places, CREATED).said] == ["bulk"], (
        "the hub has all of it"
    )

    lacks = msgspec.structs.replace(leaf(), said={"normal": ClassState(EPOCH, CREATED, 1, 12, 0, 100)})
    for _ in range(2):
        lacks = admitted(announce(cls="bulk"), lacks, places, CREATED)
        assert sorted(lacks.said) == ["bulk", "normal"]
        assert [*lacks.classes] == ["bulk"]
    assert admitted(announce(), lacks, places, CREATED).said["normal"].last == 9, "it is declared again"


def test_a_stream_that_was_created_anew_too_often_is_refused_and_its_other_times_stay_known() -> None:
    known = None
    for number in range(MOST_MADE):
        one = announce()
        state = replace(one.classes["normal"], made=f"2026-01-01T00:00:{number:02}Z")
        said = replace(one, classes={"normal": state})
        assert refused_classes(said, ["normal"], known) == {}
        known = admitted(said, known, {"normal": AggregateRef(*AGGREGATE, last=70)}, "now")
    assert known is not None
    assert len(known.made["normal"]) == MOST_MADE
    assert set(known.made["normal"].values()) == {CREATED}
    assert refused_classes(said, ["normal"], known) == {}, "it is announced again and again"
    more = replace(said, classes={"normal": replace(state, made="2026-01-02T00:00:00Z")})
    assert "replace the disk" in refused_classes(more, ["normal"], known)["normal"]
    assert (
        admitted(announce(), known, {"normal": AggregateRef(*AGGREGATE, last=70)}, "now").made == known.made
    )
