"""Reads Parquet files of any writer with the column types of the jobs.

Arrow follows a schema stored in the file: delta-rs writes text views, others large text or dictionaries,
which few Arrow functions accept.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hub_jobs.tables.places import Place, is_refusal, plain

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
_FAULTS: Final = (OSError, pa.ArrowException)
"""Errors that Arrow raises for a bad file."""
_MOST_SAID: Final = 200
_ROWS_TOGETHER: Final = 8_192
"""Larger pieces bring no gain."""


def checked(coded: Sequence[str] = ()) -> ds.ParquetFileFormat:
    """Return a dataset format that verifies page checksums (`OSError`) and reads `coded` columns as
    dictionaries.
    """
    return ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(dictionary_columns=coded),
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
    )


CHECKED: Final = checked()


class UnreadableError(OSError):
    """A file can't be read; the text names it and the reason. `damaged` is False when the store refused
    access.
    """

    def __init__(self, at: Place, fault: str, damaged: bool) -> None:
        super().__init__(f"file {at} can't be read: {fault}")
        self.at, self.fault, self.damaged = at, fault, damaged

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadableError, (self.at, self.fault, self.damaged)


def _unreadable(at: Place, error: Exception) -> UnreadableError:
    if isinstance(error, FileNotFoundError):
        if isinstance(at, Path) and not (at.parent / "_delta_log").exists():
            return UnreadableError(at, "its table is gone; mount its disk again, and run again", False)
        return UnreadableError(at, "it is gone", True)
    unmounted = isinstance(error, OSError) and error.errno in (errno.ENODEV, errno.ENOTCONN, errno.ESTALE)
    refused = isinstance(error, PermissionError) or unmounted or is_refusal(error)
    return UnreadableError(at, plain(error)[:_MOST_SAID], not refused)


class ParquetFile:
    """An open Parquet file whose errors contain its name."""

    def __init__(self, at: Place, **how: Any) -> None:
        self._at = at
        self._dictionaries = how.get("read_dictionary", ())
        try:
            self._file = pq.ParquetFile(**_source(at), page_checksum_verification=True, **how)
        except _FAULTS as error:
            raise _unreadable(at, error) from error

    @property
    def num_row_groups(self) -> int:
        return int(self._file.num_row_groups)

    @property
    def names(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns with the writer's types."""
        return self._file.schema_arrow

    def bounds(self, number: int, column: str) -> tuple[Any, Any] | None:
        """Return minimum and maximum of a column in a row group, None when unknown."""
        group = self._file.metadata.row_group(number)
        for at in range(group.num_columns):
            known = group.column(at)
            if known.path_in_schema == column and known.statistics is not None:
                return (known.statistics.min, known.statistics.max) if known.statistics.has_min_max else None
        return None

    def read_row_group(self, number: int, **how: Any) -> pa.Table:
        """Read a row group, with checksums verified. Raises `UnreadableError`."""
        try:
            return usual(self._file.read_row_group(number, **how), self._dictionaries)
        except _FAULTS as error:
            raise _unreadable(self._at, error) from error

    def close(self) -> None:
        self._file.close()


@contextmanager
def parquet_file(at: Place, **how: Any) -> Iterator[ParquetFile]:
    """Open a Parquet file with the arguments of Arrow's `ParquetFile`. Raises `UnreadableError`."""
    with closing(ParquetFile(at, **how)) as file:
        yield file


def _source(at: Place) -> dict[str, Any]:
    return {"source": at} if isinstance(at, Path) else {"source": at.key, "filesystem": at.store}


def parquet_columns(at: Place, columns: list[str]) -> Any:
    """Read some columns of a file whole. Raises `UnreadableError`."""
    try:
        return usual(pq.read_table(**_source(at), columns=columns, page_checksum_verification=True))
    except _FAULTS as error:
        raise _unreadable(at, error) from error


def fitted_groups(at: Place, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the row groups of any writer's file as `fitted`. Raises `UnreadableError`."""
    with parquet_file(at) as file:
        known = [name for name in schema.names if name in file.names]
        for group in range(file.num_row_groups):
            yield fitted(file.read_row_group(group, columns=known), schema)


def together(groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Merge small row groups of one table into larger pieces of one chunk each."""
    held: list[pa.Table] = []
    size = 0
    for rows in groups:
        held.append(rows)
        size += rows.num_rows
        if size >= _ROWS_TOGETHER:
            yield _joined(held)
            held, size = [], 0
    if held:
        yield _joined(held)


def _joined(parts: list[pa.Table]) -> pa.Table:
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def usual(rows: pa.Table, dictionaries: Container[str] = ()) -> pa.Table:
    """Convert rows to the jobs' types; columns in `dictionaries` stay dictionaries of text."""
    for at, field in enumerate(rows.schema):
        if field.name in dictionaries:
            continue
        kind = _usual(field.type)
        if kind != field.type:
            rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema in its order, null when missing."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def with_more(ours: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Return the contract's columns, followed by columns that other programs added."""
    known = set(ours.names)
    return pa.schema([*ours, *(field for field in given if field.name not in known)])


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
