"""Sums of the places of batches that stand together."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hub_jobs.audit.rows.place_sums import sums_of
from hub_jobs.tables.ranges import marks

_HIGHEST = 2**31 - 1
_RISING = st.builds(
    lambda first, size: list(range(first, first + size)), st.integers(0, 20), st.integers(1, 9)
)
_ANY = st.lists(st.integers(-2, 20_000), min_size=1, max_size=5)


@given(st.lists(_RISING | _ANY, min_size=1, max_size=4))
@example([[_HIGHEST, -_HIGHEST - 1]])
@example([[16_382, 16_383, 16_384]])
def test_rows_that_rise_place_by_place_have_the_sums_of_any_others(parts: list[list[int]]) -> None:
    sizes = np.array([len(part) for part in parts])
    places = np.concatenate(parts).astype(np.int32)

    total, squares, marked = sums_of(places, np.cumsum(sizes) - sizes, sizes)

    assert total.tolist() == [sum(part) for part in parts]
    assert squares.tolist() == [sum(place * place for place in part) for part in parts]
    assert marked.tolist() == [int(marks(np.array(part)).sum()) for part in parts]
