"""Which of the records of a run count, in whatever order and pieces they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Doubt, Ledger, LostStream, Previous, Readings, StreamState
from hub_jobs.audit import ledgers
from hub_jobs.audit.ledgers import LedgerRecords, LostEnd, remembered_runs
from tests.unit.hub_jobs.rows import OTHER_RUN, RUN

KEY = ("edge-1", "normal", RUN)
BEGUN = Ledger("edge-1", "normal", RUN, 0, (), Readings(), StreamState("made", 1, 1))
BUSY = replace(BEGUN, n=4, stored=((1, 3),), readings=Readings(accepted=40, stored=30))
HEARD = replace(BUSY, stored=((1, 4),), readings=Readings(accepted=40, stored=40))
"""The same after an acknowledgement: no number was given out since."""
NAMING = replace(
    HEARD,
    readings=Readings(accepted=40, stored=40, discarded=10),
    discarded=((2, 2, 10, "stream_full"),),
    gone=((2, 3, 1, "stream_full"),),
    lost=(LostStream("older", 9),),
)
CLOSED = replace(
    HEARD, n=6, stored=((1, 6),), readings=Readings(accepted=60, stored=60), lost=(LostStream("older", 7),)
)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORDS = (BEGUN, BUSY, HEARD, NAMING, replace(CLOSED, final=True))


OPEN = replace(HEARD, n=6)
COURSE = (
    OPEN,
    replace(OPEN, stored=((1, 5),), readings=replace(OPEN.readings, dead=2)),
    replace(
        OPEN,
        stored=((1, 5),),
        refused=((6, 6, "stream_full"),),
        readings=replace(OPEN.readings, dead=2, refused=3),
    ),
)
"""After a batch of dead letters was acknowledged, and then one was refused: numbers that had been given out
and accepted before."""


def row(record: Ledger, seq: int = 1, **given: Any) -> dict[str, Any]:
    """A record as it stands in bronze; each came from a stream of its own."""
    return {
        "payload": record.encode(),
        "domain": record.domain,
        "class": record.cls,
        "stream": "TELEMETRY_0",
        "seq": seq,
        "source_stream": "TEL_edge-1_normal",
        "source_identity": f"made {record.stream.created}",
        "source_seq": seq,
        "arrived": NOON + timedelta(seconds=seq),
        **given,
    }


def gathered(*parts: Sequence[Ledger]) -> LedgerRecords:
    """What was gathered from rows in so many pieces."""
    whole = LedgerRecords()
    for records in parts:
        part = LedgerRecords()
        for record in records:
            part.add(row(record))
        whole.join(part)
    assert not whole.unusable
    return whole


@given(st.permutations(RECORDS), st.integers(0, len(RECORDS)))
def test_the_newest_record_and_the_one_that_names_most_count_in_any_order(
    records: list[Ledger], cut: int
) -> None:
    found = gathered(records[:cut], records[cut:])

    (ledger,) = found.claims().ledgers.values()
    assert (ledger.n, ledger.stored, ledger.final) == (6, ((1, 6),), True)
    assert ledger.readings == Readings(accepted=60, stored=60, discarded=10)
    assert ledger.discarded == NAMING.discarded
    assert found.claims().gone == {("edge-1", "normal", "made"): list(NAMING.gone)}
    assert found.lost.streams == {("edge-1", "normal", "older"): 9}


@given(st.permutations(RECORDS[:3]))
def test_of_two_records_at_one_number_the_one_that_heard_more_counts(records: list[Ledger]) -> None:
    assert gathered(records).claims().ledgers == {KEY: HEARD}


@given(st.permutations(COURSE), st.integers(0, len(COURSE)))
def test_of_two_records_that_differ_in_one_count_the_later_one_counts(
    records: list[Ledger], cut: int
) -> None:
    assert gathered(records[:cut], records[cut:]).claims().ledgers == {KEY: COURSE[-1]}


def test_what_is_gone_in_part_of_two_ranges_is_in_both() -> None:
    first = replace(BEGUN, gone=((1, 5, 2, "stream_full"),))
    second = replace(first, gone=((1, 4, 1, "stream_full"), (3, 9, 4, "stream_full")))

    assert gathered([first, second]).claims().gone == {
        ("edge-1", "normal", "made"): [(1, 5, 2, "stream_full"), (3, 9, 4, "stream_full")]
    }


EARLY = replace(BEGUN, gone=((5, 9, 2, "stream_full"), (20, 21, 0, "purged")))
LATE = replace(BEGUN, gone=((1, 12, 3, "stream_full"), (20, 25, 1, "purged")))
"""Messages of devices were discarded, which no count of a record tells."""


@given(st.permutations([EARLY, LATE, replace(EARLY, stream=StreamState("then", 1, 2))]), st.integers(0, 3))
def test_of_what_records_call_gone_the_widest_counts_once_for_each_stream_in_any_order(
    records: list[Ledger], cut: int
) -> None:
    assert gathered(records[:cut], records[cut:]).claims().gone == {
        ("edge-1", "normal", "made"): list(LATE.gone),
        ("edge-1", "normal", "then"): list(EARLY.gone),
    }


def test_ranges_that_lie_in_others_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "NAMED_AT_ONCE", 2)
    found = gathered([replace(BEGUN, gone=((5, last, 1, "stream_full"),)) for last in range(5, 50)])

    assert found.discarded == {("edge-1", "normal", "made"): {(5, 49, 1, "stream_full")}}


@given(st.lists(st.sampled_from(["made", "later"]), min_size=2, max_size=4), st.integers(0, 4))
def test_all_the_streams_that_a_source_took_from_are_known(made: list[str], cut: int) -> None:
    place = ("TEL_edge-1_normal", "abc")
    parts = [LedgerRecords(), LedgerRecords()]
    for at, created in enumerate(made):
        record = replace(BEGUN, stream=StreamState(created, 1, 1))
        parts[at >= cut].add(row(record, source_identity="abc"))
    parts[0].join(parts[1])

    assert parts[0].origins == {place: {("edge-1", "normal", created) for created in made}}


@given(st.permutations(range(1, 6)), st.integers(0, 5))
def test_the_first_record_that_knows_of_a_replaced_store_is_found(seqs: list[int], cut: int) -> None:
    parts = [LedgerRecords(), LedgerRecords()]
    for at, seq in enumerate(seqs):
        lost = (LostStream("made", 9, kept=4),) if seq > 2 else ()
        parts[at >= cut].add(row(replace(BEGUN, lost=lost), seq))
    parts[0].join(parts[1])

    place = int((NOON + timedelta(seconds=3)).timestamp()) * 1_000_000, 3
    source = ("TEL_edge-1_normal", "made made")
    assert parts[0].lost.tails == {LostEnd(("edge-1", "normal", "made"), 4, 9): {source: place}}
    assert parts[0].lost.streams == {}


@given(st.permutations(range(1, 8)), st.integers(0, 7), st.sampled_from([(0, 700), (500, 700)]))
def test_two_restores_that_agree_in_all_but_their_time_stay_two_in_any_order(
    seqs: list[int], cut: int, times: tuple[int, int]
) -> None:
    """The first is known from record 3 on, the second from record 5 on."""
    known = [LostStream("made", 9, 4, at) for at in times]
    parts = [LedgerRecords(), LedgerRecords()]
    for at, seq in enumerate(seqs):
        parts[at >= cut].add(row(replace(BEGUN, lost=tuple(known[: (seq > 2) + (seq > 4)])), seq))
    parts[0].join(parts[1])

    moments = [int((NOON + timedelta(seconds=seq)).timestamp()) * 1_000_000 for seq in (3, 5)]
    assert parts[0].lost.ends(("TEL_edge-1_normal", "made made")) == {
        (moments[0], 3): [LostEnd(("edge-1", "normal", "made"), 4, 9, times[0])],
        (moments[1], 5): [LostEnd(("edge-1", "normal", "made"), 4, 9, times[1])],
    }


def test_a_record_that_speaks_for_another_domain_or_class_is_not_heard() -> None:
    found = LedgerRecords()
    for seq, changed in enumerate(({"domain": "edge-2"}, {"class": "critical"}), 1):
        found.add(row(HEARD, seq, **changed))

    assert (found.newest, found.origins) == ({}, {})
    assert [record.seq for record in found.unusable] == [1, 2]
    assert all("it speaks for edge-1, class normal" in record.fault for record in found.unusable)


@given(st.permutations([3, 5, 4]))
def test_what_is_remembered_of_a_run_is_the_most_that_a_later_one_says(numbers: list[int]) -> None:
    said = [Previous(OTHER_RUN, n, Readings(stored=10 * n), closed=False) for n in numbers]
    ledgers = [replace(BEGUN, n=at, previous=previous) for at, previous in enumerate(said)]

    assert remembered_runs([BEGUN, *ledgers]) == {
        ("edge-1", "normal", OTHER_RUN): Previous(OTHER_RUN, 5, Readings(stored=50), closed=False)
    }


def test_a_doubt_that_later_runs_repeat_is_of_the_first_and_none_is_forgotten() -> None:
    first, second, third = (
        Doubt(kind, "file", f"/x/{at}.log", "is read again", at)
        for at, kind in enumerate(("twice", "lacks", "twice"))
    )
    one, two = sorted((RUN, OTHER_RUN))
    found = LedgerRecords()
    for record in (
        replace(BEGUN, run=two, doubts=(first, third)),
        replace(HEARD, run=one, doubts=(second,)),
        replace(BEGUN, run=one, doubts=(first, replace(second, at=0))),
    ):
        found.add(row(record))
    doubts = found.claims().doubts
    assert {run[2]: list(named) for run, named in doubts.items()} == {one: [first, second], two: [third]}
    assert str(second) == "lines of input 'file' may lack: /x/1.log is read again"
