"""Ranges (`agent.contract.ranges`) and numbers in columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from agent.contract.ranges import Range
from hub_jobs.source.binary import Mask as Mask
from hub_jobs.source.binary import Numbers as Numbers

History = tuple[str, str]
"""A stream and which history of it, as in the columns `stream` and `created`."""

MOST_CODES: Final = 2**62
"""What a code of several columns may grow to; rows themselves are fewer than 2**31."""


_RUN: Final = 1_000
"""Numbers that rise one after the other, from which on an order that keeps runs is the quicker one."""


class Keys(NamedTuple):
    """A key for each number in the space of its code, in the order of both; no key of one space follows on
    one of another."""

    keys: Numbers
    span: int
    least: int

    @staticmethod
    def of(codes: Numbers, numbers: Numbers) -> Keys | None:
        """None where keys would not fit."""
        if not numbers.size:
            return Keys(numbers, 1, 0)
        least = int(numbers.min())
        span = int(numbers.max()) - least + 2
        if (int(codes.max()) + 1) * span >= MOST_CODES:
            return None
        return Keys(codes * span + (numbers - least), span, least)

    def in_order(self) -> Numbers:
        """The keys as they rise. Those of one source mostly come so, file by file, and to merge a few runs
        takes a tenth of sorting."""
        falls = int(np.count_nonzero(self.keys[1:] < self.keys[:-1]))
        if not falls:
            return self.keys
        return np.sort(self.keys, kind="stable" if falls < self.keys.size // _RUN else None)


@dataclass(frozen=True, slots=True)
class CodedRanges:
    """Ranges in many spaces as columns, where a space is a code: sorted by code and first number, and within
    a space as `union` gives them. What it does with n rows takes n log n, whatever the number of spaces."""

    codes: Numbers
    first: Numbers
    last: Numbers

    @staticmethod
    def of(codes: Numbers, first: Numbers, last: Numbers) -> CodedRanges:
        """The ranges that cover exactly these, which may overlap and be in any order. Numbers are ranges
        with the same first and last."""
        order = np.lexsort((first, codes))
        codes, first, last = codes[order], first[order], last[order]
        # The highest end so far within each code. Ranks of (code, end) rise with the code, so that one
        # running maximum over all rows never takes the end of a code before.
        by_end = np.lexsort((last, codes))
        ranks = np.empty_like(by_end)
        ranks[by_end] = np.arange(by_end.size)
        ends = last[by_end][np.maximum.accumulate(ranks)] if ranks.size else last
        begins = np.ones(codes.size, dtype=np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (first[1:] > ends[:-1] + 1)
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], codes.size)[: starts.size] - 1
        return CodedRanges(codes[starts], first[starts], ends[stops])

    @staticmethod
    def of_numbers(codes: Numbers, numbers: Numbers) -> CodedRanges:
        """The ranges that cover exactly these numbers. Keys are sorted where they fit, which takes a tenth of
        an order of two columns."""
        if (packed := Keys.of(codes, numbers)) is None:
            return CodedRanges.of(codes, numbers, numbers)
        keys = packed.in_order()
        starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 2) > 1)
        first, last = keys[starts], keys[np.append(starts[1:], keys.size)[: starts.size] - 1]
        return CodedRanges(first // packed.span, *(end % packed.span + packed.least for end in (first, last)))

    def contains(self, codes: Numbers, numbers: Numbers) -> Mask:
        """Which of `numbers`, each in the space of its code, are in the ranges."""
        if not self.codes.size:
            return np.zeros(numbers.size, dtype=np.bool_)
        firsts = np.unique(self.first)
        keys = self.codes * firsts.size + np.searchsorted(firsts, self.first)
        asked = np.searchsorted(firsts, numbers, side="right") - 1
        at = np.searchsorted(keys, codes * firsts.size + asked, side="right") - 1
        found = np.maximum(at, 0)
        inside: Mask = (asked >= 0) & (at >= 0) & (self.codes[found] == codes) & (numbers <= self.last[found])
        return inside


class CodedNumbers:
    """Different numbers in many spaces as columns, sorted by code and number."""

    def __init__(self, codes: Numbers, numbers: Numbers) -> None:
        order = np.lexsort((numbers, codes))
        codes, numbers = codes[order], numbers[order]
        kept = np.ones(codes.size, dtype=np.bool_)
        kept[1:] = (codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1])
        self.codes, self.numbers = codes[kept], numbers[kept]
        self._known = np.unique(numbers)
        self._keys = self._key(self.codes, self.numbers)

    def places(self, codes: Numbers, numbers: Numbers) -> Numbers:
        """Where each of them is, -1 for one that is not there; a code of -1 is none."""
        if not self.codes.size:
            return np.full(codes.size, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._keys, self._key(codes, numbers)), self.codes.size - 1)
        return np.where((self.codes[at] == codes) & (self.numbers[at] == numbers), at, -1)

    def _key(self, codes: Numbers, numbers: Numbers) -> Numbers:
        # One number for both; the rank of a number that is not there is that of another one, which is seen.
        return codes * self._known.size + np.searchsorted(self._known, numbers)


def runs_of(numbers: Numbers) -> list[Range]:
    """The ranges that cover exactly `numbers`, which may be unsorted and repeat."""
    if not numbers.size:
        return []
    values = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(values) != 1)
    first = values[np.concatenate(([0], breaks + 1))]
    last = values[np.concatenate((breaks, [values.size - 1]))]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def contains(ranges: Sequence[Range], numbers: Numbers) -> Mask:
    """Which of `numbers` are in `ranges`."""
    if not ranges:
        return np.zeros(numbers.size, dtype=np.bool_)
    bounds: Numbers = np.array(ranges, dtype=np.int64)
    at = np.searchsorted(bounds[:, 0], numbers, side="right") - 1
    inside: Mask = (at >= 0) & (numbers <= bounds[np.maximum(at, 0), 1])
    return inside


def marks(places: Numbers) -> Numbers:
    """A number for each place that looks like chance (SplitMix64): sums of them agree for the same places
    only, where sums and sums of squares agree for 1, 5, 6 and 2, 3, 7 too."""
    if places.size > _SMALL and places.view(np.uint64).max() < _SMALL:
        return _small_marks()[places]  # in a tenth of the time
    mixed = places.astype(np.uint64) + _STEP
    for shift, factor in _MIXES:
        mixed = (mixed ^ (mixed >> shift)) * factor
    found: Numbers = (mixed ^ (mixed >> np.uint64(31))).astype(np.int64)
    return found


@lru_cache(maxsize=1)
def _small_marks() -> Numbers:
    return marks(np.arange(_SMALL))


_SMALL: Final = 16_384
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
