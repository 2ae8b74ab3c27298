"""Arithmetic of number ranges: sorted, disjoint, inclusive, and never touching. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

History = tuple[str, str]
"""A stream and which history of it, as in the columns `stream` and `created`."""

Range = tuple[int, int]
Numbers = npt.NDArray[np.int64]


def runs_of(numbers: Numbers) -> list[Range]:
    """The ranges that cover exactly `numbers`, which may be unsorted and repeat."""
    if not numbers.size:
        return []
    values = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(values) != 1)
    first = values[np.concatenate(([0], breaks + 1))]
    last = values[np.concatenate((breaks, [values.size - 1]))]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def union(*groups: Iterable[Range]) -> list[Range]:
    """The ranges that cover all of `groups`, whose ranges may overlap and be in any order."""
    merged: list[Range] = []
    for first, last in sorted(span for group in groups for span in group):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def without(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """What of `ranges` is not in `removed`; both as `union` gives them."""
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


def holes(ranges: Sequence[Range]) -> list[Range]:
    """The ranges between the first number and the last that are not in `ranges`."""
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges) if after[0] > before[1] + 1]


def size(ranges: Iterable[Range]) -> int:
    """How many numbers there are."""
    return sum(last - first + 1 for first, last in ranges)


def contains(ranges: Sequence[Range], numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Which of `numbers` are in `ranges`."""
    if not ranges:
        return np.zeros(numbers.size, dtype=np.bool_)
    bounds: Numbers = np.array(ranges, dtype=np.int64)
    at = np.searchsorted(bounds[:, 0], numbers, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (numbers <= bounds[np.maximum(at, 0), 1])
    return inside


def text(ranges: Sequence[Range], most: int = 20) -> str:
    """The ranges for people: `1-3, 7`."""
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most])
    return f"{shown} and {len(ranges) - most} more" if len(ranges) > most else shown


def intersection(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """What is in both."""
    mine = union(ranges)
    return without(mine, without(mine, union(others)))
