"""What the audit reads of the tables: file by file, a row group in memory at a time. Up to `HERE_ROWS` rows
the driver reads the files itself, on all cores and without a Spark session; beyond that they are Spark's
tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit import ledgers
from hub_jobs.audit.ledgers import LedgerRecords
from hub_jobs.audit.rows import count_rows
from hub_jobs.audit.rows.count_rows import TEXTS, Offsets, RowCounts, Share
from hub_jobs.audit.unreadable import Unreadable, described, put_aside
from hub_jobs.session import run_tasks
from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import ParquetFile, Place, UnreadableError, parquet_file
from hub_jobs.tables.scan import Condition, bounds, file_paths, files
from hub_jobs.tables.seen import ID_COLUMNS, Joining, SeenNumbers

HERE_ROWS: Final = 200_000_000
"""Rows of all tables that are still read without Spark, some ten seconds a hundred million and core."""
_ROWS_AT_ONCE: Final = 4_000_000
"""Rows of bronze whose accounts the driver holds at once, about 300 bytes each."""

Result = TypeVar("Result")

_WHOLE: Final = Share()
_IDENTITY: Final = sorted({*ID_COLUMNS, *ledgers.COLUMNS} - {"digest", "payload"})
_COLUMNS: Final = {
    "bronze": count_rows.BRONZE_COLUMNS,
    "readings": count_rows.READINGS_COLUMNS,
    "quarantine": count_rows.QUARANTINE_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class ScanPart:
    """What of the tables is counted: of a `domain` (None: of all) the batches and messages whose moment is
    from `since` on and before `until`, in microseconds since 1970."""

    domain: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> list[Condition]:
        """Which rows of each table are looked at."""
        return [] if self.domain is None else [("domain", "=", self.domain)]

    @property
    def is_span(self) -> bool:
        """Whether only a span of time is counted."""
        return self.since is not None or self.until is not None

    def within(self, moment: int) -> bool:
        """Whether a moment is in the span."""
        after = self.since is None or moment >= self.since
        return after and (self.until is None or moment < self.until)

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The rows that are of the domain."""
        return (
            rows
            if self.domain is None
            else rows.filter(pc.fill_null(pc.equal(rows["domain"].cast(pa.string()), self.domain), False))
        )

    def spanned(self, held: RowCounts) -> RowCounts:
        """What was counted of bronze, as far as it is of the span."""
        if not self.is_span:
            return held
        first = np.iinfo(np.int64).min if self.since is None else self.since
        end = np.iinfo(np.int64).max if self.until is None else self.until
        own = (pc.field("moment") >= first) & (pc.field("moment") < end)
        return held._replace(batches=held.batches.filter(own), direct=held.direct.filter(own))


ALL: Final = ScanPart()


@dataclass(frozen=True, slots=True)
class AuditTables:
    """The tables, each as it was at one moment: everything that `readings` should hold is in the other two,
    which are None before the first refine. `offsets` say up to which hub sequence each history
    is refined, `begun` up to which a refine had named what it could not take. Files that can't be read are
    put aside while they are counted."""

    bronze: Table
    readings: Table | None
    quarantine: Table | None
    offsets: Offsets
    begun: Offsets = field(default_factory=dict)
    part: ScanPart = ALL
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def existing(self) -> list[Table]:
        """Those that exist."""
        return [table for table in (self.bronze, self.readings, self.quarantine) if table is not None]

    @property
    def shares(self) -> list[Share]:
        """The parts in which they are to be counted, one after the other."""
        of = -(-_rows(self.bronze) // _ROWS_AT_ONCE) or 1
        return [Share(which, of) for which in range(of)]

    def put_aside(self, name: str, error: UnreadableError) -> None:
        """Go on without a file. Raises the error where the file is not damaged."""
        self.unreadable.append(put_aside(self._named(name), error))

    def note(self, name: str, error: UnreadableError) -> None:
        """Go on, though some columns of a file can't be read. Raises the error as `put_aside`."""
        found = described(self._named(name), error)
        if found not in self.unreadable:
            self.unreadable.append(found)

    def _named(self, name: str) -> Table:
        return next(table for table in self.existing if table.name == name)


@dataclass(frozen=True, slots=True)
class FileShare:
    """A file of a table, and what of it is to be counted."""

    table: str
    path: Place
    offsets: Offsets
    begun: Offsets
    share: Share
    part: ScanPart


class Survey(NamedTuple):
    """What rows of bronze are, `before` and `after` the sequences that were given, how many there are of each
    history, and what the ledger records among them say."""

    records: LedgerRecords
    before: SeenNumbers
    after: SeenNumbers
    rows: Counter[tuple[str, str]]


def count(tables: AuditTables, share: Share) -> dict[str, RowCounts]:
    """What the rows of a share come to, by table."""
    work = [
        FileShare(table.name, path, dict(tables.offsets), dict(tables.begun), share, tables.part)
        for table in tables.existing
        for path in file_paths(table, tables.part.where)
    ]
    done = list(each(tables, _count, work))
    return {
        name: count_rows.merged(name, [counted for piece, counted in done if piece.table == name])
        for name in _COLUMNS
    }


def survey(tables: AuditTables, upto: Offsets) -> Survey:
    """What bronze holds. `upto` divides it: sequences up to there, and those behind."""
    paths = _in_order(tables.bronze, tables.part.where)
    work = [FileShare("bronze", path, dict(upto), {}, _WHOLE, tables.part) for path in paths]
    records, before, after, rows = LedgerRecords(), Joining(), Joining(), Counter[tuple[str, str]]()
    for _, (part, fault) in each(tables, _survey, work):
        if fault is not None:
            tables.note("bronze", fault)
        records.join(part.records)
        before.add(part.before)
        after.add(part.after)
        rows.update(part.rows)
    return Survey(records, before.seen(), after.seen(), rows)


def each(
    tables: AuditTables, task: Callable[[FileShare], Result], work: Sequence[FileShare]
) -> Iterator[tuple[FileShare, Result]]:
    """What a task comes to for every file, in order. A file that can't be read is put aside and has no
    result."""
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
    if sum(map(_rows, tables.existing)) <= HERE_ROWS:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(task, work)
    else:
        from hub_jobs.session import session

        yield from run_tasks(session("audit"), task, work)


def _or_fault(task: Callable[[FileShare], Result], piece: FileShare) -> Result | UnreadableError:
    try:
        return task(piece)
    except UnreadableError as error:
        return error


def _in_order(bronze: Table, where: Sequence[Condition]) -> list[Place]:
    """The files in the order of their sequences, so that ranges meet as they come."""
    rows = files(bronze).to_pylist()
    places = {
        row["path"]: (row["min.stream"] or "", row["min.created"] or "", row["min.seq"] or 0) for row in rows
    }
    return sorted(file_paths(bronze, where), key=lambda path: places[path.name])


def _rows(table: Table) -> int:
    found = files(table)
    return sum(count or 0 for count in bounds(found, "num_records"))


def _count(piece: FileShare) -> RowCounts:
    columns = _COLUMNS[piece.table]
    parts: list[RowCounts] = []
    for rows in map(piece.part.chosen, _row_groups(piece.path, columns)):
        if piece.table == "readings":
            parts.append(count_rows.readings(rows, piece.share))
        elif piece.table == "bronze":
            parts.append(piece.part.spanned(count_rows.bronze(rows, piece.offsets, piece.share)))
        else:
            parts.append(count_rows.quarantine(rows, piece.offsets, piece.begun, piece.share))
    return count_rows.merged(piece.table, parts)


def _survey(piece: FileShare) -> tuple[Survey, UnreadableError | None]:
    found = Survey(LedgerRecords(), SeenNumbers(), SeenNumbers(), Counter())
    fault = None
    with parquet_file(piece.path) as file:
        for group in range(file.num_row_groups):
            ids = piece.part.chosen(_columns(file, piece.path, group, _IDENTITY))
            try:
                for row in _records(file, piece, group, ids):
                    found.records.add(row)
            except UnreadableError as error:
                # What the rows are is known without their payloads.
                fault = error
            counts = ids.group_by(["stream", "created"]).aggregate([([], "count_all")]).to_pylist()
            found.rows.update({(row["stream"], row["created"]): row["count_all"] for row in counts})
            old = count_rows.upto(ids, piece.offsets)
            for seen, mask in ((found.before, old), (found.after, ~old)):
                if mask.any():
                    seen.add(ids if mask.all() else ids.filter(pa.array(mask)))
    return found, fault


def _records(file: ParquetFile, piece: FileShare, group: int, ids: pa.Table) -> list[dict[str, Any]]:
    """The ledger records of a row group. Payloads are nearly all of its bytes, and most have no record."""
    if not pc.any(_said(ids)).as_py():
        return []
    rows = piece.part.chosen(_columns(file, piece.path, group, [*_IDENTITY, "payload"]))
    found: list[dict[str, Any]] = rows.filter(_said(rows)).to_pylist()
    return found


def _said(rows: pa.Table) -> Any:
    return pc.and_(pc.ends_with(rows["subject"], "._ledger"), pc.is_valid(rows["class"]))


def _row_groups(path: Place, columns: Sequence[str]) -> Iterator[pa.Table]:
    texts = [name for name in columns if name in TEXTS]
    with parquet_file(path, read_dictionary=texts) as file:
        for group in range(file.num_row_groups):
            yield _columns(file, path, group, columns)


def _columns(file: ParquetFile, path: Place, group: int, columns: Sequence[str]) -> pa.Table:
    if lacking := set(columns) - set(file.names):
        raise UnreadableError(path, f"it has no column {min(lacking)}", damaged=True)
    return file.read_row_group(group, columns=list(columns), use_threads=False)
