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

from hub_jobs.tables.schemas import BRONZE, QUARANTINE, READINGS
from hub_jobs.transforms import balance, counted
from hub_jobs.transforms.counted import Counted, Share
from tests.unit.hub_jobs.rows import RUN, batch_row, direct_row

OFFSETS = {("TELEMETRY_0", "2026-11-21T00:00:00Z"): 100}
ALL = Share()


def _texts(table: pa.Table) -> pa.Table:
    """The table as it is read: its texts as dictionaries."""
    for name in counted.TEXTS:
        if name in table.column_names:
            at = table.column_names.index(name)
            table = table.set_column(at, name, table[name].dictionary_encode())
    return table


def _bronze(rows: Sequence[dict[str, Any]], share: Share = ALL) -> Counted:
    table = _texts(pa.Table.from_pylist(list(rows), BRONZE))
    return counted.merged("bronze", [counted.bronze(table, OFFSETS, share)])


def _readings(places: Sequence[tuple[int, int]], share: Share = ALL, groups: int = 1) -> Counted:
    """Readings of (batch, place), in so many row groups."""
    rows = [{"domain": "edge-1", "class": "normal", "run": RUN, "n": n, "index": at} for n, at in places]
    cuts = np.array_split(np.arange(len(rows)), groups)
    tables = [_texts(pa.Table.from_pylist([rows[at] for at in cut], READINGS)) for cut in cuts]
    return counted.merged("readings", [counted.readings(table, share) for table in tables])


def _quarantine(rows: Sequence[dict[str, Any]] = ()) -> Counted:
    table = _texts(pa.Table.from_pylist(list(rows), QUARANTINE))
    return counted.merged("quarantine", [counted.quarantine(table, OFFSETS, ALL)])


def _held(n: int, count: int) -> dict[str, Any]:
    return batch_row(b"", n=n, count=count, source_seq=n)


def _bad_line(n: int, line: int | None) -> dict[str, Any]:
    place = {"stream": "TELEMETRY_0", "created": "2026-11-21T00:00:00Z", "seq": n}
    batch = {"domain": "edge-1", "class": "normal", "run": RUN, "n": n}
    return {**place, **batch, "line": line, "reason": "bad line"}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sets(st.integers(0, 9)), st.integers(1, 4))
def test_a_batch_is_complete_when_every_place_is_there_once_and_only_then(
    taken: list[int], bad: set[int], groups: int
) -> None:
    found = balance.batches(
        _bronze([_held(1, 10)]),
        _readings([(1, at) for at in taken], groups=groups),
        _quarantine([_bad_line(1, at) for at in sorted(bad)]),
    )

    held = Counter([*taken, *bad])
    assert found.complete.tolist() == [held == Counter(range(10))]
    assert (found.in_readings.tolist(), found.quarantined.tolist()) == ([len(taken)], [len(bad)])
    balance.look_again(found, 0, np.array(sorted(held.elements())))
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

    found = balance.batches(_bronze([_held(1, 10)]), _readings([(1, at) for at in places]), _quarantine())

    assert found.complete.tolist() == [False]


def test_a_batch_in_quarantine_as_a_whole_is_complete_without_a_reading() -> None:
    found = balance.batches(_bronze([_held(1, 4)]), _readings([]), _quarantine([_bad_line(1, None)]))

    assert (found.complete.tolist(), found.quarantined.tolist()) == ([True], [4])


def test_the_shares_of_a_table_add_up_to_all_of_it() -> None:
    numbers = (1, 65_535, 65_536, 200_000)
    rows = [_held(n, 2) for n in numbers] + [direct_row(b"1", source_seq=n) for n in numbers]
    places = [(n, at) for n in numbers for at in (0, 1)]
    parts = [
        (
            balance.batches(_bronze(rows, share), _readings(places, share), _quarantine()),
            balance.messages(_bronze(rows, share), _readings(places, share), _quarantine()),
        )
        for share in (Share(0, 2), Share(1, 2))
    ]

    assert sorted(n for batches, _ in parts for n in batches.n.tolist()) == list(numbers)
    assert all(batches.complete.all() for batches, _ in parts)
    assert sorted(seq for _, messages in parts for seq in messages.seq.tolist()) == list(numbers)
    assert all(batches.n.size for batches, _ in parts), "both have something"


def test_a_message_that_came_twice_counts_once_and_another_at_its_place_counts_too() -> None:
    again = [direct_row(b"1", source_seq=3, seq=seq) for seq in (1, 2)]
    found = balance.messages(
        _bronze([*again, direct_row(b"2", source_seq=3, seq=3), direct_row(b"3", source_seq=4, seq=101)]),
        _readings([]),
        _quarantine(),
    )

    assert (found.in_bronze.tolist(), found.pending.tolist()) == ([2, 1], [0, 1])
    assert found.difference.tolist() == [2, 0]
