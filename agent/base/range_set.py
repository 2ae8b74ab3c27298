"""Sets of whole numbers kept as ranges: pure. Batch numbers are nearly contiguous, so a run is one or two
ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice

from agent.base.logs import listed

Ranges = tuple[tuple[int, int], ...]


class RangeSet:
    """Numbers as sorted, disjoint, inclusive ranges, from such ranges."""

    def __init__(self, ranges: Ranges = ()) -> None:
        self._first = [first for first, _ in ranges]
        self._last = [last for _, last in ranges]

    def add(self, number: int) -> None:
        """Put one number in; putting it in again changes nothing."""
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
        """Forget the lowest range; raises `IndexError` when there is none."""
        del self._first[0], self._last[0]

    def drop_highest(self) -> int:
        """Forget the highest range and return its first number; raises `IndexError` when there is none."""
        del self._last[-1]
        return self._first.pop()

    @property
    def lowest(self) -> int:
        """The lowest number, 0 while there is none."""
        return self._first[0] if self._first else 0

    def __len__(self) -> int:
        return len(self._first)

    def ranges(self) -> Ranges:
        return tuple(zip(self._first, self._last, strict=True))

    @property
    def highest(self) -> int:
        """The highest number, 0 while there is none."""
        return self._last[-1] if self._last else 0

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._first, number)
        return at > 0 and number <= self._last[at - 1]


def without(first: int, last: int, held: Ranges) -> Ranges:
    """What of `first` to `last` is not in these ranges, which are in order and apart."""
    left = []
    at = max(bisect_right(held, (first, first)) - 1, 0)
    for low, high in islice(held, at, None):
        if low > last:
            break
        if low > first:
            left.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        left.append((first, last))
    return tuple(left)


def size(ranges: Iterable[tuple[int, int]]) -> int:
    """How many numbers there are."""
    return sum(last - first + 1 for first, last in ranges)


def text(ranges: Ranges, most: int = 20) -> str:
    """The ranges for people: `1-3, 7`."""
    return listed(
        [str(first) if first == last else f"{first}-{last}" for first, last in ranges], most, noun="ranges"
    )
