"""Ranges of what was discarded, and the file that says what stood where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.contract import new_run
from agent.leaf.ledger.evictions import (
    FULL,
    MAX_RANGES,
    PURGED,
    EvictionRecord,
    Index,
    IndexedMessage,
    Range,
    extend,
)

RUN, OTHER = new_run(), new_run()


@given(st.permutations(range(1, 20)), st.integers(0, 19))
def test_numbers_in_any_order_become_ranges_that_count_each_once(order: list[int], most: int) -> None:
    ranges: list[Range] = []
    for n in [*order[:most], *order[:3]]:
        extend(ranges, n, n, n * 10, FULL)
    named = {n for first, last, _, _ in ranges for n in range(first, last + 1)}
    assert named == set(order[:most]) | set(order[:3])
    assert sum(count for _, _, count, _ in ranges) == 10 * sum(named)
    assert ranges == sorted(ranges)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


def test_ranges_of_two_reasons_are_not_joined() -> None:
    ranges: list[Range] = []
    for n, reason in ((1, FULL), (2, PURGED), (3, FULL)):
        extend(ranges, n, n, 5, reason)
    assert ranges == [(1, 1, 5, FULL), (2, 2, 5, PURGED), (3, 3, 5, FULL)]


def test_a_run_of_too_many_ranges_keeps_its_sum_and_the_newest_names() -> None:
    one = EvictionRecord()
    for n in range(1, 2 * MAX_RANGES + 5, 2):
        one.claim(IndexedMessage(n, RUN, n, 10), FULL)
    found = one.runs[RUN]
    assert len(found.ranges) == MAX_RANGES
    assert found.readings == 10 * (MAX_RANGES + 2)
    assert found.ranges[-1][0] == 2 * MAX_RANGES + 3


def test_a_record_that_is_discarded_is_due_again() -> None:
    one = EvictionRecord()
    one.claim(IndexedMessage(3, RUN, 1, 10), FULL)
    one.runs[RUN].recorded = 9
    one.claim(IndexedMessage(8), FULL)
    assert one.runs[RUN].recorded == 9
    one.claim(IndexedMessage(9), FULL)
    assert one.runs[RUN].recorded == 0


def test_the_file_gives_back_in_order_what_was_added_before_and_after_a_restart(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.load()
    given = [IndexedMessage(1, RUN, 1, 10), IndexedMessage(3), IndexedMessage(4, OTHER, 1, 2**20)]
    for entry in given:
        index.add(entry)
    index.flush()
    again = Index(tmp_path / "index")
    again.load()
    assert again.top == 4
    again.add(IndexedMessage(9, OTHER, 2, 1))
    assert again.front(5) == (given, 5)
    again.drop()
    assert again.front(9) == ([IndexedMessage(9, OTHER, 2, 1)], 9)


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.load()
    for seq in range(1, 5):
        index.add(IndexedMessage(seq, RUN, seq, 1))
    index.flush()
    path = tmp_path / "index"
    path.write_bytes(path.read_bytes()[:-50] + bytes(80))
    index.load()
    assert index.top == 2
    index.add(IndexedMessage(7, RUN, 7, 1))
    assert [one.seq for one in index.front(10)[0]] == [1, 2, 7]


def test_what_was_given_is_left_out_of_the_file_in_the_end(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.load()
    many = 80_000
    for seq in range(1, many + 1):
        index.add(IndexedMessage(seq, RUN, seq, 1))
    seen = 0
    while seen < many - 10:
        found, seen = index.front(many - 10)
        assert found[-1].seq == seen
        index.drop()
        index.compact()
    assert (tmp_path / "index").stat().st_size < 1000
    assert [one.seq for one in index.front(many)[0]] == list(range(many - 9, many + 1))
