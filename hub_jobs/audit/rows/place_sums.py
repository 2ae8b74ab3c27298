"""Sums places, their squares and marks, which together only the places 0 to the last yield. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hub_jobs.tables.ranges import Mask, Numbers, marks

Integers = npt.NDArray[np.signedinteger[Any]]

_KNOWN: Final = 16_384
"""Places with precomputed sums."""


def sums_of(places: Integers, starts: Numbers, sizes: Numbers) -> list[Numbers]:
    """Return sums of adjacent rows, by start and size."""
    first = places[starts].astype(np.int64)
    ends = first + sizes
    jumps = places[1:] - places[:-1] != 1
    jumps[starts[1:] - 1] = False
    if not jumps.any() and first.min(initial=0) >= 0 and ends.max(initial=0) < _KNOWN:
        # As refine writes a batch: looked up in a tenth of the time in which they are added up.
        return [below[ends] - below[first] for below in _sums_below()]
    numbers = places.astype(np.int64)
    terms = numbers, numbers * numbers, marks(numbers)
    return [np.add.reduceat(each, starts) if numbers.size else numbers for each in terms]


def add_up(count: Numbers, places: Numbers, total: Numbers, squares: Numbers, marked: Numbers) -> Mask:
    """Tell which batches have the places 0 to count - 1 once each."""
    found: Mask = (places == count) & (total * 2 == count * (count - 1))
    found &= squares * 6 == count * (count - 1) * (count * 2 - 1)
    most = int(count[found].max(initial=0))
    due = np.concatenate(([0], np.cumsum(marks(np.arange(most, dtype=np.int64)))))
    found &= marked == due[np.where(found, count, 0)]
    return found


@lru_cache(maxsize=1)
def _sums_below() -> list[Numbers]:
    places = np.arange(_KNOWN, dtype=np.int64)
    return [np.cumsum(each) - each for each in (places, places * places, marks(places))]
