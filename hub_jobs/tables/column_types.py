"""The types of columns as the jobs know them, whichever program wrote a file. Pure.

A Parquet file may carry an Arrow schema of its writer, and Arrow reads by it: delta-rs writes text as views,
others as large text or as dictionaries, and few of Arrow's functions take these.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = (pa.types.is_string_view, pa.types.is_large_string)
_BYTES: Final = (pa.types.is_binary_view, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def usual(rows: pa.Table, dictionaries: Container[str] = ()) -> pa.Table:
    """The same rows with the types that the jobs know; some columns stay dictionaries of text."""
    for at, field in enumerate(rows.schema):
        if field.name in dictionaries:
            continue
        kind = _usual(field.type)
        if kind != field.type:
            rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


def plain_texts(rows: pa.Table) -> pa.Table:
    """The same rows without dictionaries: a text of one is slow to make an object of."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            kind = field.type.value_type
            rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order; those that the rows lack are null."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _usual(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _usual(kind.value_type)
    if any(is_kind(kind) for is_kind in _TEXTS):
        return pa.string()
    if any(is_kind(kind) for is_kind in _BYTES):
        return pa.binary()
    if pa.types.is_map(kind):
        is_plain = _is_usual(kind.key_type, kind.item_type)
        return kind if is_plain else pa.map_(_usual(kind.key_type), _usual(kind.item_type))
    if any(is_kind(kind) for is_kind in _LISTS):
        is_plain = pa.types.is_list(kind) and _is_usual(kind.value_type)
        return kind if is_plain else pa.list_(_usual(kind.value_type))
    return _TIME if pa.types.is_timestamp(kind) else kind


def _is_usual(*kinds: Any) -> bool:
    return all(_usual(kind) == kind for kind in kinds)


def coded_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with their texts as dictionaries."""
    columns = [
        column.dictionary_encode() if pa.types.is_string(column.type) else column for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)
