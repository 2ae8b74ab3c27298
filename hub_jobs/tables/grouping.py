"""Groups rows by equal values, with integer codes and sums. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.tables.ranges import MOST_CODES, Mask, Numbers

Names = tuple[str | None, ...]


def different_rows(columns: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
    """Return the first row of each distinct combination of values, and the combination of every row.

    Columns have one length and may already be coded. Each column is coded alone, without joining values per
    row.
    """
    size = len(columns[0])
    codes, most = np.zeros(size, dtype=np.int64), 1
    for column in columns:
        own, kinds = _coded_column(column.combine_chunks())
        if kinds < 2:
            continue
        if most * kinds >= MOST_CODES:
            codes, most = _coded(codes), size
        codes = codes * kinds + own
        most *= kinds
    which = codes if most == 1 else _coded(codes)
    first = np.zeros(int(which.max()) + 1 if size else 0, dtype=np.int64)
    first[which[::-1]] = np.arange(size - 1, -1, -1)
    return first, which


def _coded_column(column: pa.Array) -> tuple[Numbers, int]:
    if not pa.types.is_dictionary(column.type):
        coded = column.dictionary_encode("encode")
        return coded.indices.to_numpy(), len(coded.dictionary)
    # A dictionary may name a value twice, or null.
    values = column.dictionary.dictionary_encode("encode")
    if not column.null_count and len(values.dictionary) == len(values):
        return column.indices.to_numpy(), len(values)
    of_value = np.append(values.indices.to_numpy(), len(values.dictionary))
    if values.dictionary.null_count:
        of_value[-1] = pc.index(pc.is_null(values.dictionary), True).as_py()
    places = pc.fill_null(column.indices, len(column.dictionary)).to_numpy()
    return of_value[places], len(values.dictionary) + 1


def _coded(values: Numbers) -> Numbers:
    """Code each value by its position among the distinct values, without sorting."""
    found: Numbers = pa.array(values).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def coded(tables: Sequence[pa.Table], columns: Sequence[str]) -> tuple[list[Numbers], list[Names]]:
    """Return a code for every row of each table, equal for equal texts in `columns`, and the texts
    per code.
    """
    together = pa.concat_tables([table.select(columns) for table in tables])
    first, which = different_rows(together.columns)
    texts = plain_texts(together.take(pa.array(first))).to_pydict()
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return np.split(which, ends), list(zip(*texts.values(), strict=True))


def grouped(codes: Sequence[Numbers], numbers: Sequence[Numbers]) -> tuple[list[Numbers], int, Numbers]:
    """Group rows by code and number: the group of each row, the number of groups, and one row per group."""
    code, number = np.concatenate(codes), np.concatenate(numbers)
    order = np.lexsort((number, code))
    new = changes(code[order], number[order])
    ids = np.empty(order.size, np.int64)
    ids[order] = np.cumsum(new) - 1
    ends = np.cumsum([part.size for part in codes])[:-1]
    return np.split(ids, ends), int(new.sum()), order[new]


def summed(ids: Numbers, size: int, values: Numbers | Mask) -> list[int]:
    """Return the sum of values per group."""
    found = np.zeros(size, np.int64)
    np.add.at(found, ids, values.astype(np.int64))
    return found.tolist()


def changes(*columns: Numbers | Mask) -> Mask:
    """Return a mask of rows that differ from the previous row; the first differs."""
    found = np.zeros(columns[0].size, np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def by_code(codes: Numbers, numbers: Numbers, size: int) -> Iterator[Numbers]:
    """Yield the numbers of each code from 0 to `size` - 1. Ignores code -1."""
    order = np.argsort(codes, kind="stable")
    ordered, edges = numbers[order], np.searchsorted(codes[order], np.arange(size + 1))
    for first, end in pairwise(edges.tolist()):
        yield ordered[first:end]


def plain_texts(rows: pa.Table) -> pa.Table:
    """Return the rows without dictionaries; converting dictionary texts to Python objects is slow."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


def coded_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with texts as dictionaries."""
    columns = [
        column.dictionary_encode() if pa.types.is_string(column.type) else column for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def coded_column(codes: npt.NDArray[np.integer[Any]], texts: Sequence[str | None]) -> pa.DictionaryArray:
    """Return a dictionary column of texts, which Parquet writes without change."""
    distinct = pa.array(texts, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(pa.array(codes)), distinct.dictionary)
