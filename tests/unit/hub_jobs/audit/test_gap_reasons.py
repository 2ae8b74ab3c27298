"""Gaps in sequences and why they are there, from rows of bronze without a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hub_jobs.audit import stream_gaps
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.gap_reasons import Gap, Neighbours, of_source
from hub_jobs.audit.ledgers import (
    EvictedRange,
    LedgerClaims,
    LostStores,
    Origin,
    Source,
)
from hub_jobs.source.streams import HubStream, StreamLimits
from hub_jobs.tables import gap_notes, seen, stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.gap_notes import GapReason, reason_by_limits
from hub_jobs.tables.stream_history import StreamHistory
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import direct_row

MADE = "2026-11-21T00:00:00Z"
SOURCE = ("TEL_edge-1_normal", "abc")
ORIGIN = ("edge-1", "normal", "made")


def _stream(limits: StreamLimits, created: str = MADE) -> HubStream:
    return HubStream("TELEMETRY_0", created, 1, 9, 9, 0, 900, limits=limits)


def _lake(
    where: Path,
    hub: Sequence[int],
    source: Sequence[int],
    note: GapReason | None = None,
    created: str = MADE,
) -> None:
    """Bronze of which only these hub sequences are there, with these sequences of one source."""
    rows = [direct_row(b"1", source_seq=at, created=created) for at in source]
    numbered = [{**row, "seq": seq} for row, seq in zip(rows, hub, strict=True)]
    add_bronze(where, numbered, numbered=True)
    if note is not None:
        _pass(where, [(seq, seq) for seq in range(1, max(hub)) if seq not in hub], max(hub), note)


def _pass(where: Path, gone: Sequence[tuple[int, int]], last: int, why: GapReason) -> None:
    """Commit as ingest does where it passes gaps."""
    bronze, history = ensure_table(where, "bronze"), StreamHistory("TELEMETRY_0", MADE)
    offsets = gap_notes.offsets_of(bronze, history.history, gone, why)
    bronze.commit([], {history.ingested: last, **offsets}, gap_notes.notes_of(history.history, gone, why))


def _forget_log(where: Path) -> None:
    """Have a year go by in the log of bronze."""
    ensure_table(where, "bronze").commit([], {"later": 1})
    ensure_table(where, "bronze").delta.create_checkpoint()
    for entry in (where / "bronze" / "_delta_log").glob("*.json"):
        os.utime(entry, (0, 0))
    ensure_table(where, "bronze").delta.cleanup_metadata()
    assert not any("petiole.gaps" in commit for commit in ensure_table(where, "bronze").delta.history())


def gaps(
    where: Path,
    gone: dict[Origin, list[EvictedRange]] | None = None,
    hub: dict[str, HubStream] | None = None,
    lost: LostStores | None = None,
    origins: dict[Source, set[Origin]] | None = None,
) -> list[tuple[str, Sequence[tuple[int, int]], GapReason, bool]]:
    bronze = ensure_table(where, "bronze")
    held = seen.load(where, bronze, stream_history.all_of(bronze)).numbers()
    origins = {SOURCE: {ORIGIN}} if origins is None else origins
    claims = LedgerClaims({}, {}, gone or {}, origins, lost or LostStores(), [])
    found = stream_gaps.find_gaps(bronze, BronzeContents(held), claims, hub or {})
    return [(gap.kind, gap.ranges, gap.why, gap.lost) for gap in found]


def test_what_a_leaf_discarded_is_told_from_what_the_hub_never_had(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2, 3, 4], source=[2, 5, 9, 10])

    assert gaps(tmp_path, {ORIGIN: [(1, 1, 1, "stream_full"), (6, 7, 2, "stream_full")]}) == [
        ("source", [(1, 1), (6, 7)], GapReason.DISCARDED, False),
        ("source", [(3, 4), (8, 8)], GapReason.NOT_SOURCED, True),
    ]


@pytest.mark.parametrize("why", [GapReason.EXPIRED, GapReason.LIMIT, GapReason.UNKNOWN])
def test_what_went_at_the_hub_has_the_reason_noted_when_it_was_found(tmp_path: Path, why: GapReason) -> None:
    _lake(tmp_path, hub=[1, 4, 5], source=[1, 4, 5], note=why)

    assert gaps(tmp_path) == [("hub", [(2, 3)], why, True), ("source", [(2, 3)], why, True)]


def test_without_a_note_the_stream_as_it_is_now_tells_if_it_is_still_the_same(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 4, 5], source=[1, 4, 5])
    limits = StreamLimits(max_age_ns=1)

    for created, why in ((MADE, GapReason.EXPIRED), ("later", GapReason.UNKNOWN)):
        found = gaps(tmp_path, hub={"TELEMETRY_0": _stream(limits, created)})
        assert [gap[2] for gap in found] == [why, why]


def test_a_stream_that_was_put_back_is_still_the_same_to_its_limits(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 4, 5], source=[1, 4, 5], created=f"{MADE}~1")
    found = gaps(tmp_path, hub={"TELEMETRY_0": _stream(StreamLimits(max_age_ns=1))})

    assert [gap[2] for gap in found] == [GapReason.EXPIRED, GapReason.EXPIRED]


def test_what_was_noted_of_several_holes_counts_for_each(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 3, 4], source=[1, 3, 4], note=GapReason.EXPIRED)
    more = [direct_row(b"1", source_seq=at, created=MADE) | {"seq": at} for at in (6, 7)]
    add_bronze(tmp_path, more, numbered=True)
    _pass(tmp_path, [(5, 5)], 7, GapReason.LIMIT)

    hub = {why: ranges for kind, ranges, why, _ in gaps(tmp_path) if kind == "hub"}
    assert hub == {GapReason.EXPIRED: [(2, 2)], GapReason.LIMIT: [(5, 5)]}


def test_a_gap_keeps_its_reason_when_the_log_of_the_table_has_forgotten_it(tmp_path: Path) -> None:
    kept = [1, 3, 5, 7, 9]
    _lake(tmp_path, hub=kept, source=kept)
    for gone, why in (
        (2, GapReason.EXPIRED),
        (4, GapReason.EXPIRED),
        (6, GapReason.LIMIT),
        (8, GapReason.EXPIRED),
    ):
        _pass(tmp_path, [(gone, gone)], 9, why)
    told = gaps(tmp_path)
    _forget_log(tmp_path)

    assert sorted(gaps(tmp_path)) == sorted(told)
    assert {why: ranges for kind, ranges, why, _ in told if kind == "hub"} == {
        GapReason.EXPIRED: [(2, 2), (4, 4), (8, 8)],
        GapReason.LIMIT: [(6, 6)],
    }


def test_a_message_that_the_hub_held_twice_stood_where_it_came_first(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 4, 6], source=[1, 4, 1], note=GapReason.EXPIRED)

    assert gaps(tmp_path)[-1] == ("source", [(2, 3)], GapReason.EXPIRED, True)


@pytest.mark.parametrize(
    ("holes", "beside", "why"),
    [
        ([((3, 4), GapReason.EXPIRED)], (2, 9), GapReason.EXPIRED),
        ([((3, 4), GapReason.EXPIRED)], (9, 2), GapReason.EXPIRED),
        ([((3, 3), GapReason.EXPIRED), ((5, 5), GapReason.LIMIT)], (2, 9), GapReason.UNKNOWN),
        ([((3, 4), GapReason.EXPIRED)], (5, 9), GapReason.NOT_SOURCED),
    ],
)
def test_a_hole_of_a_source_has_the_one_reason_of_what_went_between_its_neighbours(
    holes: list[tuple[tuple[int, int], GapReason]], beside: tuple[int, int], why: GapReason
) -> None:
    """Which of the two the hub held first is another matter: after a repair both came again."""
    history = ("TELEMETRY_0", MADE)
    neighbours = Neighbours({history: beside[0]}, {history: beside[1]})

    assert of_source("source", (6, 7), neighbours, {history: holes}).why is why


def test_holes_beyond_those_that_are_looked_at_are_named_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_gaps, "_LOOKED_AT", 1)
    _lake(tmp_path, hub=[1, 2, 3, 4], source=[1, 3, 5, 7])

    assert gaps(tmp_path) == [
        ("source", [(2, 2)], GapReason.NOT_SOURCED, True),
        ("source", [(4, 4), (6, 6)], GapReason.UNKNOWN, True),
    ]


def test_a_hole_larger_than_what_went_at_the_hub_is_not_explained_by_it(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 3, 4], source=[1, 4, 5], note=GapReason.EXPIRED)

    assert gaps(tmp_path) == [
        ("hub", [(2, 2)], GapReason.EXPIRED, True),
        ("source", [(2, 3)], GapReason.UNKNOWN, True),
    ]


def test_what_went_elsewhere_at_the_hub_explains_nothing_of_a_source(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 4, 5, 6], source=[1, 2, 3, 6], note=GapReason.EXPIRED)

    assert gaps(tmp_path) == [
        ("hub", [(2, 3)], GapReason.EXPIRED, True),
        ("source", [(4, 5)], GapReason.NOT_SOURCED, True),
    ]


def test_what_stands_before_the_first_that_came_is_named_and_no_loss_of_its_own(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[8, 9])

    assert gaps(tmp_path) == [("source", [(1, 7)], GapReason.UNKNOWN, False)]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (StreamLimits(), GapReason.UNKNOWN),
        (StreamLimits(max_age_ns=1), GapReason.EXPIRED),
        (StreamLimits(max_messages=9, discards_old=True), GapReason.LIMIT),
        (StreamLimits(max_messages=10, discards_old=True), GapReason.UNKNOWN),
        (StreamLimits(max_bytes=950, discards_old=True), GapReason.LIMIT),
        (StreamLimits(max_bytes=950), GapReason.UNKNOWN),
        (StreamLimits(max_bytes=2000, discards_old=True), GapReason.UNKNOWN),
        (StreamLimits(max_per_subject=1), GapReason.LIMIT),
        (StreamLimits(max_age_ns=1, max_per_subject=1), GapReason.UNKNOWN),
    ],
)
def test_a_limit_is_a_reason_only_if_it_is_the_one_that_can_be(limits: StreamLimits, why: GapReason) -> None:
    assert reason_by_limits(_stream(limits)) is why


def test_a_gap_is_said_in_one_sentence() -> None:
    gap = Gap("source", "TEL_edge-1_normal/abc", [(3, 4)], GapReason.NOT_SOURCED)

    assert str(gap) == (
        "source TEL_edge-1_normal/abc: sequences 3-4 never came: not sourced, "
        "they were never at the hub: its source passed them over"
    )


def test_the_end_of_a_stream_whose_store_was_lost_is_named(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])

    assert gaps(tmp_path, lost=LostStores({ORIGIN: 5})) == [("source", [(3, 5)], GapReason.STORE_LOST, True)]
    assert gaps(tmp_path, lost=LostStores({ORIGIN: 3})) == [("source", [(3, 3)], GapReason.STORE_LOST, True)]
    assert gaps(tmp_path, lost=LostStores({ORIGIN: 2})) == []


def test_the_end_of_a_lost_stream_is_what_stands_behind_the_last_that_came(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2, 3], source=[1, 3, 4])

    assert gaps(tmp_path, lost=LostStores({ORIGIN: 5}))[-1] == (
        "source",
        [(5, 5)],
        GapReason.STORE_LOST,
        True,
    )


def test_a_source_that_took_from_a_stream_nobody_named_may_have_taken_from_the_lost_one(
    tmp_path: Path,
) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])

    assert gaps(tmp_path, lost=LostStores({ORIGIN: 5}), origins={}) == [
        ("source", [(3, 5)], GapReason.STORE_LOST, True)
    ]


def test_a_stream_of_which_nothing_ever_came_may_be_older_than_the_lake(tmp_path: Path) -> None:
    _lake(tmp_path, hub=[1, 2], source=[1, 2])
    older = ("edge-1", "normal", "older")

    assert gaps(tmp_path, lost=LostStores({older: 5})) == [("source", [(1, 5)], GapReason.STORE_LOST, False)]
