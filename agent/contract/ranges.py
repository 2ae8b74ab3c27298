"""Handles inclusive, sorted, disjoint and separated ranges of numbers. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def union(*groups: Iterable[Range]) -> list[Range]:
    """Return the union of ranges in any order."""
    merged: list[Range] = []
    for first, last in sorted(span for group in groups for span in group):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def without(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """Return `ranges` minus `removed`; both as from `union`."""
    left: list[Range] = []
    for first, last in ranges:
        at = max(bisect_right(removed, (first, first)) - 1, 0)
        for low, high in removed[at:]:
            if low > last:
                break
            if high < first:
                continue
            if low > first:
                left.append((first, low - 1))
            first = high + 1
        if first <= last:
            left.append((first, last))
    return left


def intersection(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the intersection."""
    mine = union(ranges)
    return without(mine, without(mine, union(others)))


def holes(ranges: Sequence[Range]) -> list[Range]:
    """Return the gaps between first and last."""
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges) if after[0] > before[1] + 1]


def size(ranges: Iterable[Range]) -> int:
    """Return how many numbers there are."""
    return sum(last - first + 1 for first, last in ranges)


def text(ranges: Sequence[Range], most: int = 20, *, noun: str = "") -> str:
    """Format as `1-3, 7`; counts those above `most` with a noun."""
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most])
    left = len(ranges) - most
    return f"{shown} and {left} more{noun and f' {noun}'}" if left > 0 else shown


class RangeSet:
    """A growing set of nearly contiguous numbers."""

    def __init__(self, ranges: Ranges = ()) -> None:
        self._first = [first for first, _ in ranges]
        self._last = [last for _, last in ranges]

    def add(self, number: int) -> None:
        at = bisect_right(self._first, number)
        if at and number <= self._last[at - 1]:
            return
        joins_left = at > 0 and self._last[at - 1] == number - 1
        joins_right = at < len(self._first) and self._first[at] == number + 1
        if joins_left and joins_right:
            self._last[at - 1] = self._last.pop(at)
            del self._first[at]
        elif joins_left:
            self._last[at - 1] = number
        elif joins_right:
            self._first[at] = number
        else:
            self._first.insert(at, number)
            self._last.insert(at, number)

    def drop_lowest(self) -> None:
        """Remove the lowest range; raises `IndexError`."""
        del self._first[0], self._last[0]

    def drop_highest(self) -> int:
        """Remove the highest range and return its start; raises `IndexError`."""
        del self._last[-1]
        return self._first.pop()

    @property
    def lowest(self) -> int:
        """The lowest number, 0 if empty."""
        return self._first[0] if self._first else 0

    def __len__(self) -> int:
        return len(self._first)

    def ranges(self) -> Ranges:
        return tuple(zip(self._first, self._last, strict=True))

    @property
    def highest(self) -> int:
        """The highest number, 0 if empty."""
        return self._last[-1] if self._last else 0

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number)
        return at > 0 and number <= self._last[at - 1]
