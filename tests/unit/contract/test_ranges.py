"""Ranges of whole numbers, and sets that are kept as such."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.contract.ranges import RangeSet, size, text, union, without

numbers = st.lists(st.integers(1, 40), max_size=60)


def filled(values: list[int]) -> RangeSet:
    """A set of these numbers, put in one after the other."""
    one = RangeSet()
    for value in values:
        one.add(value)
    return one


def test_numbers_in_a_row_are_one_range() -> None:
    assert filled([1, 2, 3]).ranges() == ((1, 3),)


def test_a_number_that_was_missing_joins_its_neighbours() -> None:
    assert filled([1, 3, 2]).ranges() == ((1, 3),)


def test_an_empty_set_has_no_ranges() -> None:
    assert filled([]).ranges() == ()
    assert filled([]).highest == 0


@given(numbers)
def test_the_ranges_hold_exactly_the_numbers_that_were_put_in(values: list[int]) -> None:
    one = filled(values)
    assert sorted({*values}) == [n for first, last in one.ranges() for n in range(first, last + 1)]
    assert [n in one for n in range(42)] == [n in values for n in range(42)]
    assert one.highest == max(values, default=0)


@given(numbers)
def test_the_ranges_are_sorted_and_do_not_touch(values: list[int]) -> None:
    ranges = filled(values).ranges()
    assert all(first <= last for first, last in ranges)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(numbers)
def test_dropping_the_lowest_range_leaves_the_others(values: list[int]) -> None:
    one = filled(values)
    while before := one.ranges():
        assert one.lowest == before[0][0]
        one.drop_lowest()
        assert one.ranges() == before[1:]
        assert len(one) == len(before) - 1
    assert one.lowest == 0


@given(numbers)
def test_dropping_the_highest_range_leaves_the_others(values: list[int]) -> None:
    one = RangeSet(filled(values).ranges())
    while before := one.ranges():
        assert one.drop_highest() == before[-1][0]
        assert one.ranges() == before[:-1]


@given(numbers, st.integers(1, 42), st.integers(0, 42))
def test_what_is_left_without_some_ranges_is_exactly_the_rest(
    values: list[int], first: int, last: int
) -> None:
    left = without([(first, last)], filled(values).ranges())
    rest = [n for n in range(first, last + 1) if n not in values]
    assert [n for low, high in left for n in range(low, high + 1)] == rest
    assert size(left) == len(rest)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda span: (span[0], sum(span)))))
def test_spans_that_meet_are_joined(spans: list[tuple[int, int]]) -> None:
    covered = sorted(n for first, last in spans for n in range(first, last + 1))
    assert tuple(union(spans)) == filled(covered).ranges()


def test_ranges_are_told_to_people_up_to_a_number_of_them() -> None:
    assert text(((1, 3), (7, 7))) == "1-3, 7"
    assert text(((1, 3), (7, 7), (9, 9)), 2) == "1-3, 7 and 1 more"
    assert text(((1, 3), (7, 7), (9, 9)), 2, noun="ranges") == "1-3, 7 and 1 more ranges"
