"""Writes Parquet files of bounded size with Delta statistics, synced before a commit names them.

It does not commit; a later vacuum deletes files that no commit names.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hub_jobs.tables.parquet_reading import fitted
from hub_jobs.tables.places import Place, close, create, plain, to_do
from hub_jobs.tables.schemas import SCHEMAS, bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART: Final = "table string, path string, size long, rows long, modified long, stats string"

MAX_FILE_BYTES: Final = 128 * 1024**2
"""Closes a file at this size; one row group may exceed it."""
_ZSTD_LEVEL: Final = 1
_TAGS: Final = ("tags.key_value.key", "tags.key_value.value")
_BOUND_CHARACTERS: Final = 64
"""Longest text bound in the log."""
_LAST: Final = "\U0010ffff"
_NAN: Final = "NaN"
_ALL_DIFFERENT: Final = ("message_id", "detail")


_OWN_NAME: Final = r"^part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.zstd\.parquet$"


def is_own(name: str) -> bool:
    """Tell whether only `PartWriter` gives such a file name."""
    return re.fullmatch(_OWN_NAME, name) is not None


def are_own(names: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.match_substring_regex(names, _OWN_NAME)


class PartFile(NamedTuple):
    """A finished file: path relative to the table, bytes, rows, mtime in ms since 1970, Delta statistics as
    JSON.
    """

    table: str
    path: str
    size: int
    rows: int
    modified: int
    stats: str


class PartWriter:
    """Writes rows of one table into as many files as needed; `files` holds the finished ones.

    Leaving the context closes the last file. An exception removes the written files.
    """

    def __init__(self, lake: Place, table: str, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.files: list[PartFile] = []
        self._table = table
        self._directory = lake / table
        self._max_file_bytes = max_file_bytes
        self._open: _OpenFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
            return
        if self._open is not None:
            self._open.abandon()
        for file in self.files:
            (self._directory / file.path).unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Write rows as one row group; no rows write nothing. Text may be dictionary-encoded if all calls do
        so.
        """
        if not rows.num_rows:
            return
        if self._open is None:
            self._open = _OpenFile(self._directory, self._table, rows.schema)
        self._open.write(rows)
        if self._open.size >= self._max_file_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            self.files.append(self._open.finish())
            self._open = None


class _OpenFile:
    def __init__(self, directory: Place, table: str, schema: pa.Schema) -> None:
        self._table = table
        self._path = directory / f"part-{uuid.uuid4()}.zstd.parquet"
        with _named(self._path):
            self._sink: BinaryIO = create(self._path)
        try:
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                version="2.6",
                store_schema=False,
                write_page_checksum=True,
                **_written(schema),
            )
        except pa.ArrowException:  # a type that Parquet lacks
            self._drop()
            raise
        self._statistics = Statistics(bounded(schema))

    @property
    def size(self) -> int:
        return self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        with _named(self._path):
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._statistics.add(rows)

    def finish(self) -> PartFile:
        with _named(self._path):
            self._writer.close()
            size = self._sink.tell()
            close(self._sink)
        stats = self._statistics
        modified = time.time_ns() // 1_000_000
        return PartFile(self._table, self._path.name, size, stats.rows, modified, stats.encode())

    def abandon(self) -> None:
        # Closing writes the end of the file, for which there may be no room; what matters is why it is
        # abandoned. In a store there is a file only now.
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._drop()

    def _drop(self) -> None:
        with suppress(OSError):
            self._sink.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


@contextmanager
def _named(path: Place) -> Iterator[None]:
    """Add the file name to errors; Arrow and a full disk omit it."""
    try:
        yield
    except OSError as error:
        raise OSError(f"file {path} can't be written: {to_do(error) or plain(error)}") from error


class Statistics:
    """Gathers row count, null counts, minimum and maximum of columns while rows are written.

    The bounds hold in every reader's order: DuckDB 1.5.5 and delta-rs 1.6.6 order -0.0 below 0.0. NaN is the
    greatest number.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._columns = columns
        self._nulls: dict[str, int] = {}
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._with_nan: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for name in self._columns:
            column = rows[name]
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if column.null_count == rows.num_rows:
                continue
            if pa.types.is_dictionary(column.type):
                # It may hold what no row has; bounds need not be tight.
                column = pa.chunked_array(
                    [piece.dictionary for piece in column.chunks], column.type.value_type
                )
            if pa.types.is_floating(column.type):
                is_nan = pc.is_nan(column)
                if pc.any(is_nan).as_py():
                    self._with_nan.add(name)
                    column = column.filter(pc.invert(is_nan))
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                least, most = self._bounds.get(name, (found["min"], found["max"]))
                self._bounds[name] = min(least, found["min"]), max(most, found["max"])

    def encode(self) -> str:
        """Return the statistics as JSON for an add action."""
        least = {name: _lower(first) for name, (first, _) in self._bounds.items()}
        most = {name: _upper(last) for name, (_, last) in self._bounds.items()}
        nan = dict.fromkeys(self._with_nan, _NAN)
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": nan | least,
                "maxValues": most | nan,
                "nullCount": self._nulls,
            },
            ensure_ascii=False,  # DuckDB 1.5.5 and delta-rs 1.6.6 take \ud840\udc00 (U+20000) for U+10000
        )


def _written(schema: pa.Schema) -> dict[str, Any]:
    """Return the column encodings. Delta-encoded numbers and times take half of a dictionary's size."""
    texts = [column.name for column in schema if _is_text(column.type) and column.name not in _ALL_DIFFERENT]
    numbers = [
        column.name
        for column in schema
        if pa.types.is_integer(column.type) or pa.types.is_temporal(column.type)
    ]
    return {
        "compression": "zstd",
        "compression_level": _ZSTD_LEVEL,
        "use_dictionary": [*texts, *_TAGS],
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "write_statistics": bounded(schema),
    }


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_dictionary(kind))


def _lower(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value or -0.0)
    return value[:_BOUND_CHARACTERS] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value or 0.0)
    if not isinstance(value, str) or len(value) <= _BOUND_CHARACTERS:
        return _plain(value)
    # Of all characters the last; what goes on with that very one has no shorter bound.
    return value if value[_BOUND_CHARACTERS] == _LAST else value[:_BOUND_CHARACTERS] + _LAST


def _number(value: float) -> float | str:
    """Return a number as Spark writes it to JSON, which has no infinity."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def write_rows(lake: Place, table: str, rows: pa.Table) -> list[PartFile]:
    """Write rows as one row group and return the uncommitted files."""
    with PartWriter(lake, table) as writer:
        writer.write(rows)
    return writer.files


def why_gone(table: Place, paths: Iterable[str]) -> str | None:
    """Return why files can't be committed, None when all exist.

    In an object store, checks their age by the store's clock, because a vacuum may have deleted them.
    """
    if isinstance(table, Path) and not (table / "_delta_log").exists():
        return "it went away while it was in use: mount its disk again, and run again"
    for path in paths if isinstance(table, Path) else ():
        if not (table / path).exists():
            return (
                f"file {path} was deleted before its commit, as by a vacuum that took it for old: "
                "set this machine's clock, and run the job again"
            )
    return None


def written(rows: DataFrame, lake: Place, name: str) -> list[PartFile]:
    """Write rows that have the columns of a table, and return the uncommitted files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with PartWriter(lake, name) as writer:
            for batch in batches:
                writer.write(fitted(pa.Table.from_batches([batch]), SCHEMAS[name]))
        for file in writer.files:
            yield pa.RecordBatch.from_pylist([file._asdict()])

    return [PartFile(**row.asDict()) for row in rows.mapInArrow(write, _PART).collect()]
