"""Rows by the values that they share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_jobs.tables import grouping
from hub_jobs.tables.grouping import by_code


@pytest.mark.parametrize("most", [2**62, 1])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "x", "y"])), min_size=1))
def test_each_combination_of_values_has_one_row_that_shows_it(most: int, rows: list[tuple[str, str]]) -> None:
    columns = [pa.chunked_array([[row[at] for row in rows]], pa.string()) for at in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "MOST_CODES", most)
        first, which = grouping.different_rows(columns)
    assert [rows[first[code]] for code in which.tolist()] == rows
    assert len(first) == len(set(rows))


def test_columns_that_are_coded_tell_the_same_rows_apart() -> None:
    twice_named = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, None, 3, 4], pa.int32()), pa.array(["x", "y", "x", None, None])
    )
    plain = pa.chunked_array([["a", "a", "a", "a", "a", "a"]], pa.string())

    first, which = grouping.different_rows([plain, pa.chunked_array([twice_named])])

    assert which.tolist() == [0, 1, 0, 2, 2, 2]
    assert first.tolist() == [0, 1, 3]

    first, which = grouping.different_rows([plain.slice(0, 3), pa.chunked_array([twice_named[:3]])])

    assert which.tolist() == [0, 1, 0]
    assert first.tolist() == [0, 1]


def test_pieces_that_are_coded_by_themselves_are_told_apart_as_one() -> None:
    pieces = [pa.array(["x", None, "y"]).dictionary_encode(), pa.array(["y", "x"]).dictionary_encode()]

    first, which = grouping.different_rows([pa.chunked_array(pieces)])

    assert which.tolist() == [0, 1, 2, 2, 0]
    assert first.tolist() == [0, 1, 2]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 60))))
def test_each_code_has_its_numbers_in_their_order(rows: list[tuple[int, int]]) -> None:
    codes, numbers = np.array(rows, dtype=np.int64).reshape(-1, 2).T

    assert [part.tolist() for part in by_code(codes, numbers, 4)] == [
        [number for code, number in rows if code == wanted] for wanted in range(4)
    ]
