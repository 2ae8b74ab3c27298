"""Rows of several tables by what they share: groups, and sums over them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.placed_rows import HISTORY
from hub_jobs.tables.ranges import Mask, Numbers

Names = tuple[str | None, ...]


def coded(tables: Sequence[pa.Table], columns: Sequence[str]) -> tuple[list[Numbers], list[Names]]:
    """A number for every row of each table, the same for the same texts in `columns`, and the texts of each
    number."""
    together = pa.concat_tables([table.select(columns) for table in tables]).unify_dictionaries()
    code = np.zeros(together.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for name in columns:
        column = together[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.array([], together.schema.field(name).type)
        texts.append([None, *column.dictionary.to_pylist()])
        code = code * len(texts[-1]) + pc.fill_null(column.indices, -1).to_numpy() + 1
    distinct, inverse = np.unique(code, return_inverse=True)
    names: list[Names] = []
    for combined in distinct.tolist():
        parts: list[str | None] = []
        for known in reversed(texts):
            combined, at = divmod(combined, len(known))
            parts.insert(0, known[at])
        names.append(tuple(parts))
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(inverse.astype(np.int64), ends), names


def grouped(codes: Sequence[Numbers], numbers: Sequence[Numbers]) -> tuple[list[Numbers], int, Numbers]:
    """A group for each pair of code and number, counted in their order: that of each row, how many there are,
    and a row of each."""
    code, number = np.concatenate(codes), np.concatenate(numbers)
    order = np.lexsort((number, code))
    new = changes(code[order], number[order])
    ids = np.empty(order.size, np.int64)
    ids[order] = np.cumsum(new) - 1
    ends = np.cumsum([part.size for part in codes])[:-1]
    return np.split(ids, ends), int(new.sum()), order[new]


def summed(ids: Numbers, size: int, values: Numbers | Mask) -> list[int]:
    """The sum of the values of each group."""
    found = np.zeros(size, np.int64)
    np.add.at(found, ids, values.astype(np.int64))
    return found.tolist()


def changes(*columns: Numbers) -> Mask:
    """Which rows differ from the one before; the first does."""
    found = np.zeros(columns[0].size, np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def times(rows: pa.Table, given: pa.Table) -> Numbers:
    """How often each row is among the given messages, by its place in the hub's stream."""
    codes, _ = coded([rows, given], HISTORY)
    ids, size, _ = grouped(codes, [rows["seq"].to_numpy(), given["seq"].to_numpy()])
    found: Numbers = np.bincount(ids[1], minlength=size)[ids[0]].astype(np.int64)
    return found


def stood_at(source: Numbers, seq: Numbers, of_reading: Numbers, numbers: Numbers) -> Numbers:
    """How many readings each place has. No pair of `source` and `seq` may come twice."""
    ids, size, _ = grouped([source, of_reading], [seq, numbers])
    counts = np.bincount(ids[1], minlength=size)
    found: Numbers = counts[ids[0]].astype(np.int64)
    return found
