"""What bronze, readings and quarantine come to, on small tables without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Correction
from hub_jobs.audit.rows import count_rows, mismatches, reconcile
from hub_jobs.audit.rows.count_rows import RowCounts, Share
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.tables.schemas import BRONZE, QUARANTINE, READINGS
from tests.harness.examples import costly
from tests.unit.hub_jobs.rows import RUN, batch_row, correction_row, dead_row, direct_row

MADE, LATER = "2026-11-21T00:00:00Z", "later"
OFFSETS = {("TELEMETRY_0", MADE): 100, ("TELEMETRY_0", LATER): 40}
BEGUN = {**dict.fromkeys(OFFSETS, 1_000), ("TELEMETRY_0", "neither"): 1_000}
ALL = Share()


def _texts(table: pa.Table) -> pa.Table:
    """The table as it is read: its texts as dictionaries."""
    for name in count_rows.TEXTS:
        if name in table.column_names:
            at = table.column_names.index(name)
            table = table.set_column(at, name, table[name].dictionary_encode())
    return table


def _bronze(rows: Sequence[dict[str, Any]], share: Share = ALL) -> RowCounts:
    table = _texts(pa.Table.from_pylist(list(rows), BRONZE))
    return count_rows.merged("bronze", [count_rows.bronze(table, OFFSETS, share)])


def _readings(places: Sequence[tuple[int, int]], share: Share = ALL, groups: int = 1) -> RowCounts:
    """Readings of (batch, place), in so many row groups."""
    rows = [{"domain": "edge-1", "class": "normal", "run": RUN, "n": n, "index": at} for n, at in places]
    cuts = np.array_split(np.arange(len(rows)), groups)
    tables = [_texts(pa.Table.from_pylist([rows[at] for at in cut], READINGS)) for cut in cuts]
    return count_rows.merged("readings", [count_rows.readings(table, share) for table in tables])


def _quarantine(rows: Sequence[dict[str, Any]] = ()) -> RowCounts:
    table = _texts(pa.Table.from_pylist(list(rows), QUARANTINE))
    return count_rows.merged("quarantine", [count_rows.quarantine(table, OFFSETS, BEGUN, ALL)])


def _held(n: int, count: int) -> dict[str, Any]:
    return batch_row(b"", n=n, count=count, source_seq=n)


def _bad_line(n: int, line: int | None) -> dict[str, Any]:
    place = {"stream": "TELEMETRY_0", "created": MADE, "seq": n}
    batch = {"domain": "edge-1", "class": "normal", "run": RUN, "n": n}
    return {**place, **batch, "line": line, "reason": "bad line"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sets(st.integers(0, 9)), st.integers(1, 4))
@costly()
def test_a_batch_is_complete_when_every_place_is_there_once_and_only_then(
    taken: list[int], bad: set[int], groups: int
) -> None:
    found = reconcile.batches(
        _bronze([_held(1, 10)]),
        _readings([(1, at) for at in taken], groups=groups),
        _quarantine([_bad_line(1, at) for at in sorted(bad)]),
    )

    held = Counter([*taken, *bad])
    assert found.complete.tolist() == [held == Counter(range(10))]
    assert (found.in_readings.tolist(), found.quarantined.tolist()) == ([len(taken)], [len(bad)])
    mismatches.look_again(found, 0, np.array(sorted(held.elements())))
    assert found.missing.tolist() == [10 - len(held)]
    assert found.doubled.tolist() == [held.total() - len(held)]


@pytest.mark.parametrize(
    ("lost", "doubled"),
    [
        ((5, 7), (6, 6)),  # the same count and sum
        ((1, 5, 6), (2, 3, 7)),  # and the same sum of squares
    ],
)
def test_repeats_can_not_hide_losses_by_the_same_sums(
    lost: tuple[int, ...], doubled: tuple[int, ...]
) -> None:
    places = sorted([*(set(range(10)) - set(lost)), *doubled])
    assert sum(places) == sum(range(10))

    found = reconcile.batches(_bronze([_held(1, 10)]), _readings([(1, at) for at in places]), _quarantine())

    assert found.complete.tolist() == [False]


def test_a_batch_in_quarantine_as_a_whole_is_complete_without_a_reading() -> None:
    found = reconcile.batches(_bronze([_held(1, 4)]), _readings([]), _quarantine([_bad_line(1, None)]))

    assert (found.complete.tolist(), found.quarantined.tolist()) == ([True], [4])


def test_a_batch_in_quarantine_as_a_whole_of_which_a_reading_is_there_too_is_doubled() -> None:
    found = reconcile.batches(_bronze([_held(1, 4)]), _readings([(1, 0)]), _quarantine([_bad_line(1, None)]))

    assert found.complete.tolist() == [False]


def test_what_is_lost_behind_a_repeat_counts_before_anybody_looks_at_the_places() -> None:
    found = reconcile.batches(_bronze([_held(1, 3)]), _readings([(1, 0), (1, 0), (1, 2)]), _quarantine())

    assert (found.missing.tolist(), found.doubled.tolist()) == ([1], [1])


def test_refined_is_what_stands_up_to_the_last_sequence_of_its_own_incarnation() -> None:
    places = [(1, MADE, 100), (2, MADE, 101), (3, LATER, 40), (4, LATER, 41), (5, "neither", 1)]
    rows = [_held(n, 2) | {"created": created, "seq": seq} for n, created, seq in places]
    found = reconcile.batches(_bronze(rows), _readings([]), _quarantine())

    assert found.n[found.refined].tolist() == [1, 3]
    lines = [_bad_line(n, 0) | {"created": created, "seq": seq} for n, created, seq in places]
    named = reconcile.batches(_bronze(rows), _readings([]), _quarantine(lines))
    assert named.n[named.quarantined > 0].tolist() == [1, 3]


def test_a_batch_with_other_content_under_a_known_number_is_no_part_of_it() -> None:
    rows = [_held(1, 3), _held(1, 5) | {"seq": 2}, _held(2, 4) | {"seq": 2, "created": LATER}]
    clash = _bad_line(1, None) | {"seq": 2, "reason": str(QuarantineReason.OTHER_CONTENT)}
    found = reconcile.batches(_bronze(rows), _readings([(1, at) for at in range(3)]), _quarantine([clash]))

    assert (found.n.tolist(), found.count.tolist()) == ([1, 2], [3, 4]), "the other at 2 is of another stream"
    assert found.complete.tolist() == [True, False]


def test_batches_of_one_number_in_two_classes_of_a_run_are_two() -> None:
    classes = ("critical", "normal")
    rows = [
        {"domain": "edge-1", "class": cls, "run": RUN, "n": 1, "index": at}
        for cls in classes
        for at in (0, 1)
    ]
    found = reconcile.batches(
        _bronze([_held(1, 2) | {"class": cls} for cls in classes]),
        count_rows.merged(
            "readings", [count_rows.readings(_texts(pa.Table.from_pylist(rows, READINGS)), ALL)]
        ),
        _quarantine(),
    )

    assert (found.n.tolist(), found.complete.tolist()) == ([1, 1], [True, True])


def test_what_an_agent_says_itself_is_no_message_and_dead_letters_are_no_readings() -> None:
    correction = correction_row(Correction("edge-1", "boot", 0, 1, 0, 1), source_seq=9)
    rows = _bronze([dead_row(b"", 1, 4), _held(2, 3), correction])

    found = reconcile.batches(rows, _readings([]), _quarantine())
    assert (found.counts["dead"].tolist(), found.counts["in_bronze"].tolist()) == ([4, 0], [0, 3])
    assert reconcile.messages(rows, _readings([]), _quarantine()).seq.tolist() == []


def test_the_shares_of_a_table_add_up_to_all_of_it() -> None:
    numbers = (1, 65_535, 65_536, 200_000)
    rows = [_held(n, 2) for n in numbers] + [direct_row(b"1", source_seq=n) for n in numbers]
    places = [(n, at) for n in numbers for at in (0, 1)]
    parts = [
        (
            reconcile.batches(_bronze(rows, share), _readings(places, share), _quarantine()),
            reconcile.messages(_bronze(rows, share), _readings(places, share), _quarantine()),
        )
        for share in (Share(0, 2), Share(1, 2))
    ]

    assert sorted(n for batches, _ in parts for n in batches.n.tolist()) == list(numbers)
    assert all(batches.complete.all() for batches, _ in parts)
    assert sorted(seq for _, messages in parts for seq in messages.seq.tolist()) == list(numbers)
    assert all(batches.n.size for batches, _ in parts), "both have something"


def test_a_message_that_came_twice_counts_once_and_another_at_its_place_counts_too() -> None:
    again = [direct_row(b"1", source_seq=3, seq=seq) for seq in (1, 2)]
    found = reconcile.messages(
        _bronze([*again, direct_row(b"2", source_seq=3, seq=3), direct_row(b"3", source_seq=4, seq=101)]),
        _readings([]),
        _quarantine(),
    )

    assert (found.in_bronze.tolist(), found.pending.tolist()) == ([2, 1], [0, 1])
    assert found.difference.tolist() == [2, 0]


def test_contents_of_messages_are_told_apart_by_the_beginnings_of_digests_however_short() -> None:
    digests = [b"12345678", b"12345678 and more", b"1234567", b"1234567\0", b"", b"87654321"]
    rows = [direct_row(b"1", source_seq=1, seq=at, digest=each) for at, each in enumerate(digests)]
    contents = _bronze(rows).direct["content"].to_pylist()
    assert [contents.index(content) for content in contents] == [0, 0, 2, 2, 4, 5]
    assert _bronze([]).direct.num_rows == 0
