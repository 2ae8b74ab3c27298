"""Gaps in sequences and why they are there, from rows of bronze without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hub_jobs import incarnations, sequences
from hub_jobs.incarnations import Incarnation
from hub_jobs.source.wire import Limits, StreamInfo
from hub_jobs.tables import ensure_table, seen
from hub_jobs.transforms.discards import Named, Origin
from hub_jobs.transforms.sequences import Gap, Why, limits_say
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import direct_row

MADE = "2026-11-21T00:00:00Z"
SOURCE = ("TEL_edge-1_normal", "abc")
ORIGIN = ("edge-1", "normal", "made")


def _stream(limits: Limits, created: str = MADE) -> StreamInfo:
    return StreamInfo("TELEMETRY_0", created, 1, 9, 9, 0, 900, limits=limits)


def _lake(where: Path, hub: Sequence[int], source: Sequence[int], note: Why | None = None) -> None:
    """Bronze of which only these hub sequences are there, with these sequences of one source."""
    rows = [direct_row(b"1", source_seq=at) for at in source]
    numbered = [{**one, "seq": seq} for one, seq in zip(rows, hub, strict=True)]
    add_bronze(where, numbered, numbered=True)
    if note is not None:
        gone = [[seq, seq] for seq in range(1, max(hub)) if seq not in hub]
        notes = {
            sequences.GAPS_NOTE: json.dumps(gone),
            sequences.WHY_NOTE: json.dumps(["TELEMETRY_0", MADE, note]),
        }
        ensure_table(where, "bronze").commit([], {Incarnation("TELEMETRY_0", MADE).ingested: max(hub)}, notes)


def _gaps(
    where: Path,
    gone: dict[Origin, list[Named]] | None = None,
    hub: dict[str, StreamInfo] | None = None,
    lost: dict[Origin, int] | None = None,
    known: bool = True,
) -> list[tuple[str, Sequence[tuple[int, int]], Why, bool]]:
    bronze = ensure_table(where, "bronze")
    held = seen.load(where, bronze, incarnations.all_of(bronze))
    origins = {SOURCE: {ORIGIN}} if known else {}
    found = sequences.gaps(bronze, held, gone or {}, origins, lost or {}, hub or {})
    return [(gap.kind, gap.ranges, gap.why, gap.lost) for gap in found]


def test_what_a_leaf_discarded_is_told_from_what_the_hub_never_had(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2, 3, 4], source=[2, 5, 9, 10])

    assert _gaps(tmp_path, {ORIGIN: [(1, 1, 1, "stream_full"), (6, 7, 2, "stream_full")]}) == [
        ("source", [(1, 1), (6, 7)], Why.DISCARDED, False),
        ("source", [(3, 4), (8, 8)], Why.NOT_SOURCED, True),
    ]


@pytest.mark.parametrize("why", [Why.EXPIRED, Why.LIMIT, Why.UNKNOWN])
def test_what_went_at_the_hub_has_the_reason_noted_when_it_was_found(tmp_path: Path, why: Why) -> None:
    _lake(tmp_path, hub=[1, 4, 5], source=[1, 4, 5], note=why)

    assert _gaps(tmp_path) == [("hub", [(2, 3)], why, True), ("source", [(2, 3)], why, True)]


def test_without_a_note_the_stream_as_it_is_now_tells_if_it_is_still_the_same(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 4, 5], source=[1, 4, 5])
    limits = Limits(max_age_ns=1)

    for created, why in ((MADE, Why.EXPIRED), ("later", Why.UNKNOWN)):
        found = _gaps(tmp_path, hub={"TELEMETRY_0": _stream(limits, created)})
        assert [one[2] for one in found] == [why, why]


def test_a_hole_larger_than_what_went_at_the_hub_is_not_explained_by_it(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 3, 4], source=[1, 4, 5], note=Why.EXPIRED)

    assert _gaps(tmp_path) == [
        ("hub", [(2, 2)], Why.EXPIRED, True),
        ("source", [(2, 3)], Why.UNKNOWN, True),
    ]


def test_what_stands_before_the_first_that_came_is_named_and_no_loss_of_its_own(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[8, 9])

    assert _gaps(tmp_path) == [("source", [(1, 7)], Why.UNKNOWN, False)]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(), Why.UNKNOWN),
        (Limits(max_age_ns=1), Why.EXPIRED),
        (Limits(max_messages=9, discards_old=True), Why.LIMIT),
        (Limits(max_messages=10, discards_old=True), Why.UNKNOWN),
        (Limits(max_bytes=950, discards_old=True), Why.LIMIT),
        (Limits(max_bytes=950), Why.UNKNOWN),
        (Limits(max_bytes=2000, discards_old=True), Why.UNKNOWN),
        (Limits(max_per_subject=1), Why.LIMIT),
        (Limits(max_age_ns=1, max_per_subject=1), Why.UNKNOWN),
    ],
)
def test_a_limit_is_a_reason_only_if_it_is_the_one_that_can_be(limits: Limits, why: Why) -> None:
    assert limits_say(_stream(limits)) is why


def test_a_gap_is_said_in_one_sentence() -> None:
    gap = Gap("source", "TEL_edge-1_normal/abc", [(3, 4)], Why.NOT_SOURCED)

    assert str(gap) == (
        "source TEL_edge-1_normal/abc: sequences 3-4 never came: not sourced, "
        "they were never at the hub: its source passed them over"
    )


def test_the_end_of_a_stream_whose_store_was_lost_is_named(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])

    assert _gaps(tmp_path, lost={ORIGIN: 5}) == [("source", [(3, 5)], Why.STORE_LOST, True)]
    assert _gaps(tmp_path, lost={ORIGIN: 2}) == []


def test_a_source_that_took_from_a_stream_nobody_named_may_have_taken_from_the_lost_one(
    tmp_path: Path,
) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])

    assert _gaps(tmp_path, lost={ORIGIN: 5}, known=False) == [("source", [(3, 5)], Why.STORE_LOST, True)]


def test_a_stream_of_which_nothing_ever_came_may_be_older_than_the_lake(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])
    older = ("edge-1", "normal", "older")

    assert _gaps(tmp_path, lost={older: 5}) == [("source", [(1, 5)], Why.STORE_LOST, False)]
