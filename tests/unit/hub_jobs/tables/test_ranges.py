"""Arithmetic of ranges against sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.ranges import Range, holes, size, union, without
from hub_jobs.tables import ranges
from hub_jobs.tables.ranges import CodedNumbers, CodedRanges, Numbers, contains, marks, runs_of

_numbers = st.sets(st.integers(0, 60))


def _ranges(numbers: set[int]) -> list[Range]:
    return runs_of(np.array(sorted(numbers), dtype=np.int64))


def _set(ranges: list[Range]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(st.lists(st.integers(0, 60)))
def test_runs_cover_exactly_the_numbers_and_never_touch(numbers: list[int]) -> None:
    found = runs_of(np.array(numbers, dtype=np.int64))

    assert _set(found) == set(numbers)
    assert found == union(found)
    assert size(found) == len(set(numbers))


@given(_numbers, _numbers)
def test_union_and_difference_are_those_of_sets(one: set[int], other: set[int]) -> None:
    assert union(_ranges(one), _ranges(other)) == _ranges(one | other)
    assert without(_ranges(one), _ranges(other)) == _ranges(one - other)


@given(_numbers)
def test_holes_are_what_is_missing_between_the_ends(numbers: set[int]) -> None:
    whole = set(range(min(numbers), max(numbers) + 1)) if numbers else set()

    assert _set(holes(_ranges(numbers))) == whole - numbers


@given(_numbers, st.lists(st.integers(-5, 65)))
def test_contains_asks_for_every_number(numbers: set[int], asked: list[int]) -> None:
    found = contains(_ranges(numbers), np.array(asked, dtype=np.int64))

    assert found.tolist() == [number in numbers for number in asked]


_SPREAD = st.integers(-(2**40), 2**40) | st.integers(0, 12)
_CODED = st.lists(st.tuples(st.integers(0, 3), _SPREAD, st.integers(0, 9)), max_size=30)


def _column(rows: Sequence[tuple[int, ...]], at: int) -> Numbers:
    return np.array([row[at] for row in rows], dtype=np.int64)


@given(_CODED, st.lists(st.tuples(st.integers(-1, 4), _SPREAD), max_size=30))
def test_ranges_of_many_spaces_are_those_of_each(
    rows: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    by_code: dict[int, list[Range]] = {}
    for code, begin, length in rows:
        by_code.setdefault(code, []).append((begin, begin + length))
    merged = {code: union(ranges) for code, ranges in by_code.items()}
    first = _column(rows, 1)

    found = CodedRanges.of(_column(rows, 0), first, first + _column(rows, 2))

    held = zip(found.codes.tolist(), found.first.tolist(), found.last.tolist(), strict=True)
    assert list(held) == [(code, *range_) for code in sorted(merged) for range_ in merged[code]]
    inside = found.contains(_column(asked, 0), _column(asked, 1)).tolist()
    assert inside == [any(a <= n <= b for a, b in merged.get(code, [])) for code, n in asked]


@pytest.mark.parametrize("most", [2**62, 1])
@given(_CODED)
def test_numbers_alone_are_the_same_ranges(most: int, rows: list[tuple[int, int, int]]) -> None:
    codes, numbers = _column(rows, 0), _column(rows, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "MOST_CODES", most)
        found = CodedRanges.of_numbers(codes, numbers)
    expected = CodedRanges.of(codes, numbers, numbers)
    for column in ("codes", "first", "last"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()


@given(_CODED, st.lists(st.tuples(st.integers(-1, 4), _SPREAD), max_size=30))
def test_numbers_of_many_spaces_have_places(
    rows: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    pairs = sorted({(code, number) for code, number, _ in rows})

    found = CodedNumbers(_column(rows, 0), _column(rows, 1))

    assert list(zip(found.codes.tolist(), found.numbers.tolist(), strict=True)) == pairs
    places = found.places(_column(asked, 0), _column(asked, 1)).tolist()
    assert places == [pairs.index(pair) if pair in pairs else -1 for pair in asked]


def test_a_place_has_the_same_mark_among_many_as_alone() -> None:
    places = np.arange(40_000, dtype=np.int64)
    alone = [int(marks(places[at : at + 1])[0]) for at in range(places.size)]
    assert (
        marks(places[:20_000] % 16_384).tolist() == [alone[place] for place in range(16_384)] + alone[:3_616]
    )
    assert marks(places).tolist() == alone
    assert marks(places - 1)[1:].tolist() == alone[:-1]
