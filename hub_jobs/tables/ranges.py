"""Handles ranges (`agent.contract.ranges`) and numbers as columns. Pure."""

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
"""A stream and its history, as in the columns `stream` and `created`."""

MOST_CODES: Final = 2**62
"""Largest code of several columns; row counts stay below 2**31."""


_RUN: Final = 1_000
"""Mean length of rising runs from which a run-preserving sort is faster."""


class Keys(NamedTuple):
    """One integer key per (code, number), in their order; keys of two spaces are never adjacent."""

    keys: Numbers
    span: int
    least: int

    @staticmethod
    def of(codes: Numbers, numbers: Numbers) -> Keys | None:
        """Return the keys, None when they would overflow."""
        if not numbers.size:
            return Keys(numbers, 1, 0)
        least = int(numbers.min())
        span = int(numbers.max()) - least + 2
        if (int(codes.max()) + 1) * span >= MOST_CODES:
            return None
        return Keys(codes * span + (numbers - least), span, least)

    def in_order(self) -> Numbers:
        """Return the sorted keys. Merging a few rising runs takes a tenth of a full sort."""
        falls = int(np.count_nonzero(self.keys[1:] < self.keys[:-1]))
        if not falls:
            return self.keys
        return np.sort(self.keys, kind="stable" if falls < self.keys.size // _RUN else None)


@dataclass(frozen=True, slots=True)
class CodedRanges:
    """Ranges in many spaces as columns, each space a code; sorted by code and first number, disjoint within a
    space.

    Operations on n rows take n log n, whatever the number of spaces.
    """

    codes: Numbers
    first: Numbers
    last: Numbers

    @staticmethod
    def of(codes: Numbers, first: Numbers, last: Numbers) -> CodedRanges:
        """Return the union of ranges, which may overlap and be in any order."""
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
        """Return ranges covering exactly these numbers."""
        if (packed := Keys.of(codes, numbers)) is None:
            return CodedRanges.of(codes, numbers, numbers)
        keys = packed.in_order()
        starts = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 2) > 1)
        first, last = keys[starts], keys[np.append(starts[1:], keys.size)[: starts.size] - 1]
        return CodedRanges(first // packed.span, *(end % packed.span + packed.least for end in (first, last)))

    def contains(self, codes: Numbers, numbers: Numbers) -> Mask:
        """Tell which `numbers`, each in its code's space, are in the ranges."""
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
    """Distinct numbers in many spaces as columns, sorted by code and number."""

    def __init__(self, codes: Numbers, numbers: Numbers) -> None:
        order = np.lexsort((numbers, codes))
        codes, numbers = codes[order], numbers[order]
        kept = np.ones(codes.size, dtype=np.bool_)
        kept[1:] = (codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1])
        self.codes, self.numbers = codes[kept], numbers[kept]
        self._known = np.unique(numbers)
        self._keys = self._key(self.codes, self.numbers)

    def places(self, codes: Numbers, numbers: Numbers) -> Numbers:
        """Return the position of each number, -1 when missing or when its code is -1."""
        if not self.codes.size:
            return np.full(codes.size, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._keys, self._key(codes, numbers)), self.codes.size - 1)
        return np.where((self.codes[at] == codes) & (self.numbers[at] == numbers), at, -1)

    def _key(self, codes: Numbers, numbers: Numbers) -> Numbers:
        # One number for both; the rank of a number that is not there is that of another one, which is seen.
        return codes * self._known.size + np.searchsorted(self._known, numbers)


def runs_of(numbers: Numbers) -> list[Range]:
    """Return ranges covering exactly `numbers`, which may be unsorted and repeat."""
    if not numbers.size:
        return []
    values = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(values) != 1)
    first = values[np.concatenate(([0], breaks + 1))]
    last = values[np.concatenate((breaks, [values.size - 1]))]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def contains(ranges: Sequence[Range], numbers: Numbers) -> Mask:
    """Tell which `numbers` are in `ranges`."""
    if not ranges:
        return np.zeros(numbers.size, dtype=np.bool_)
    bounds: Numbers = np.array(ranges, dtype=np.int64)
    at = np.searchsorted(bounds[:, 0], numbers, side="right") - 1
    inside: Mask = (at >= 0) & (numbers <= bounds[np.maximum(at, 0), 1])
    return inside


def marks(places: Numbers) -> Numbers:
    """Return a SplitMix64 hash per place. Sums of hashes agree only for equal sets of places."""
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
