"""Reads tables for the audit file by file, with one or some small row groups in memory.

The driver reads up to `HERE_ROWS` rows itself on all cores; above that Spark tasks do. For an unreadable file
the log's statistics are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from agent.contract.ranges import Range
from hub_jobs.audit.rows import count_rows
from hub_jobs.audit.rows.count_rows import TEXTS, Offsets, RowCounts, Share
from hub_jobs.audit.rows.pieces import ALL, NOTHING_SETTLED, FileShare, Past, ScanPart, pieces
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet_reading import ParquetFile, UnreadableError, parquet_file, together
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import files
from hub_jobs.tables.spaces import SOURCE_KEY
from hub_jobs.times import micros

_WHERE: Final = {
    "bronze": ("stream", "created", "seq", "domain", "run", "n", "arrived"),
    "readings": ("domain", "run", "n", "arrived", "ts", "source_seq"),
    "quarantine": ("stream", "created", "seq", "domain", "run", "n", "arrived"),
    "seen": ("space",),
}
"""Columns whose bounds select rows."""

Bounds = Mapping[str, tuple[Any, Any]]

HERE_ROWS: Final = 200_000_000
"""Rows of all tables read without Spark; a core reads a hundred million in ten seconds."""
_ROWS_AT_ONCE: Final = 4_000_000
"""Rows of bronze counted at once, about 300 bytes each."""

Result = TypeVar("Result")

_WHOLE: Final = Share()
_COLUMNS: Final = {
    "bronze": count_rows.BRONZE_COLUMNS,
    "readings": count_rows.READINGS_COLUMNS,
    "quarantine": count_rows.QUARANTINE_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An unreadable file with the log's statistics."""

    table: str
    name: str
    fault: str
    rows: int
    bounds: Bounds
    """Minimum and maximum per column."""

    def __str__(self) -> str:
        bounds = ", ".join(f"{name} {_span(*ends)}" for name, ends in self.bounds.items())
        named = f"{self.table}: file {self.name} can't be read: {self.fault}"
        if self.table == "seen":
            return named
        return (
            f"{named}. By the table's log it holds {self.rows} rows ({bounds}); nothing else is known of "
            "them, so a loss can't be excluded"
        )

    def may_hold(self, **values: Any) -> bool:
        """Tell whether the file may hold a row with these values."""
        return all(_within(self.bounds.get(name), value) for name, value in values.items())

    def moments(self) -> Range:
        """Arrival range at the hub in microseconds since 1970, as far as known."""
        first, last = self.bounds.get("arrived", (None, None))
        return (0, -1) if first is None else (micros(first), micros(last))

    @property
    def sequences(self) -> Range:
        """Hub sequence range of a bronze file, as far as known."""
        first, last = self.bounds.get("seq", (1, 0))
        return first, last

    def as_json(self) -> dict[str, Any]:
        bounds = {name: [_text(end) for end in ends] for name, ends in self.bounds.items()}
        return {
            "table": self.table,
            "file": self.name,
            "fault": self.fault,
            "rows": self.rows,
            "bounds": bounds,
        }


def put_aside(table: Table, error: UnreadableError) -> Unreadable:
    """Exclude a file from reading and return its statistics. Raises as `described`."""
    found = described(table, error)
    table.aside.add(error.at.name)
    return found


def described(table: Table, error: UnreadableError) -> Unreadable:
    """Return the statistics of a damaged file. Raises `error` when a store only refused it."""
    if not error.damaged:
        raise error
    every = files(table)
    (row,) = [entry for entry in every.to_pylist() if entry["path"] == error.at.name]
    bounds = {
        name: (row[f"min.{name}"], row[f"max.{name}"])
        for name in _WHERE[table.name]
        if row.get(f"min.{name}") is not None
    }
    return Unreadable(table.name, error.at.name, error.fault, row["num_records"] or 0, bounds)


def _within(ends: tuple[Any, Any] | None, value: Any) -> bool:
    return value is not None and ends is not None and bool(ends[0] <= value <= ends[1])


def _span(first: Any, last: Any) -> str:
    return _text(first) if first == last else f"{_text(first)} to {_text(last)}"


def _text(value: Any) -> str:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


@dataclass(frozen=True, slots=True)
class AuditTables:
    """The tables, each at one moment, and the counted part. `readings` and `quarantine` are None before
    refine.
    """

    bronze: Table
    readings: Table | None
    quarantine: Table | None
    offsets: Offsets
    """Refined hub sequence per history."""
    begun: Offsets = field(default_factory=dict)
    """Hub sequence per history that a refine has quarantined."""
    part: ScanPart = ALL
    unreadable: list[Unreadable] = field(default_factory=list)
    """Files found unreadable."""
    past: Past = NOTHING_SETTLED
    cut: int = 0
    """Rows arriving earlier (microseconds since 1970) may be settled next; 0 for none."""

    @property
    def existing(self) -> list[Table]:
        return [table for table in (self.bronze, self.readings, self.quarantine) if table is not None]

    @property
    def shares(self) -> list[Share]:
        """Return the shares to count in turn."""
        of = -(-sum(piece.rows for piece in self.pieces(self.bronze)) // _ROWS_AT_ONCE) or 1
        return [Share(which, of) for which in range(of)]

    @property
    def kept_since(self) -> int:
        """Rows arriving earlier may have expired."""
        return max(table.kept_since or 0 for table in self.existing)

    def pieces(self, table: Table, share: Share = _WHOLE, offsets: Offsets | None = None) -> list[FileShare]:
        of = self.whole(table, share, offsets)
        return list(pieces(table, self.past, self.cut, of, self.part.where))

    def whole(self, table: Table, share: Share, offsets: Offsets | None = None) -> FileShare:
        """Return a file share template without path."""
        refined = dict(self.offsets if offsets is None else offsets)
        return FileShare(table.name, table.path, refined, dict(self.begun), share, self.part)

    def put_aside(self, name: str, error: UnreadableError) -> None:
        """Exclude a damaged file; raises other errors."""
        self.unreadable.append(put_aside(self._named(name), error))

    def note(self, name: str, error: UnreadableError) -> None:
        """Note a file with unreadable columns. Raises as `put_aside`."""
        found = described(self._named(name), error)
        if found not in self.unreadable:
            self.unreadable.append(found)

    def _named(self, name: str) -> Table:
        return next(table for table in self.existing if table.name == name)


def count(tables: AuditTables, share: Share) -> dict[str, RowCounts]:
    """Count the rows of a share by table."""
    return counted(tables, [piece for table in tables.existing for piece in tables.pieces(table, share)])


def counted(tables: AuditTables, work: Sequence[FileShare]) -> dict[str, RowCounts]:
    """Count the rows of files by table."""
    done = list(each(tables, _count, work))
    return {
        name: count_rows.merged(name, [counts for piece, counts in done if piece.table == name])
        for name in _COLUMNS
    }


def each(
    tables: AuditTables, task: Callable[[FileShare], Result], work: Sequence[FileShare]
) -> Iterator[tuple[FileShare, Result]]:
    """Yield a task's result per file, in order; unreadable files are excluded."""
    if not work:
        return
    for piece, done in zip(work, _run(tables, partial(_or_fault, task), work), strict=True):
        if isinstance(done, UnreadableError):
            tables.put_aside(piece.table, done)
        else:
            yield piece, done


def _run(
    tables: AuditTables, task: Callable[[FileShare], Result], work: Sequence[FileShare]
) -> Iterator[Result]:
    if sum(piece.rows for piece in work) <= HERE_ROWS:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(task, work)
    else:
        from hub_jobs.spark.session import session

        yield from run_tasks(session("audit"), task, work)


def _or_fault(task: Callable[[FileShare], Result], piece: FileShare) -> Result | UnreadableError:
    try:
        return task(piece)
    except UnreadableError as error:
        return error


def _count(piece: FileShare) -> RowCounts:
    columns = _COLUMNS[piece.table]
    if piece.needs_arrival and "arrived" not in columns:
        columns = (*columns, "arrived")
    parts: list[RowCounts] = []
    for rows in map(piece.chosen, _read(piece, columns)):
        old = piece.old_rows(rows)
        if piece.table == "readings":
            parts.append(count_rows.readings(rows, piece.share, old))
        elif piece.table == "bronze":
            parts.append(piece.part.spanned(count_rows.bronze(rows, piece.offsets, piece.share, old)))
        else:
            parts.append(count_rows.quarantine(rows, piece.offsets, piece.begun, piece.share, old))
    return count_rows.merged(piece.table, parts)


def row_groups(file: ParquetFile, piece: FileShare) -> Iterator[int]:
    """Yield row groups that may hold rows of the span."""
    for group in range(file.num_row_groups):
        ends = file.bounds(group, "arrived") if piece.span.first is not None else None
        if ends is None or micros(ends[1]) >= (piece.span.first or 0):
            yield group


def _read(piece: FileShare, columns: Sequence[str]) -> Iterator[pa.Table]:
    texts = [name for name in columns if name in TEXTS]
    always = [name for name in columns if name not in SOURCE_KEY]
    with parquet_file(piece.path, read_dictionary=texts) as file:
        if piece.table != "readings":
            groups = (columns_of(file, piece.path, group, columns) for group in row_groups(file, piece))
            yield from together(groups)
            return
        for group in row_groups(file, piece):
            rows = columns_of(file, piece.path, group, always)
            # A reading that names its batch needs no place of a message, and most do.
            yield columns_of(file, piece.path, group, columns) if rows["n"].null_count else rows


def columns_of(file: ParquetFile, path: Place, group: int, columns: Sequence[str]) -> pa.Table:
    if lacking := set(columns) - set(file.names):
        raise UnreadableError(path, f"it has no column {min(lacking)}", damaged=True)
    return file.read_row_group(group, columns=list(columns), use_threads=False)
