"""Gathers the identities in bronze and the claims of its ledger records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit import ledgers
from hub_jobs.audit.ledgers import LedgerRecords
from hub_jobs.audit.rows.count_rows import Offsets
from hub_jobs.audit.rows.pieces import FileShare, Past
from hub_jobs.audit.rows.scan import AuditTables, columns_of, each, row_groups
from hub_jobs.tables.parquet_reading import ParquetFile, UnreadableError, parquet_file, together
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import files
from hub_jobs.tables.spaces import HISTORY, ID_COLUMNS, Joining, SeenNumbers, hub_space, joined, upto

_IDENTITY: Final = sorted({*ID_COLUMNS, *ledgers.COLUMNS} - {"digest", "payload"})


class Survey(NamedTuple):
    """The contents of bronze."""

    records: LedgerRecords
    """Claims of ledger records."""
    before: SeenNumbers
    """Identities up to the given sequences."""
    after: SeenNumbers
    """The remaining identities."""
    rows: Counter[History]
    """Rows per history."""
    settling: Past
    """The same for settled rows and rows that may be settled next."""


def survey(tables: AuditTables, ends: Offsets) -> Survey:
    """Survey bronze; `ends` separates `before` from `after` per history."""
    past, rows = tables.past, Counter(tables.past.rows)
    records, settling = LedgerRecords(), LedgerRecords()
    parts = {kind: Joining() for kind in _KINDS}
    old_rows = Counter(past.rows)
    records.join(past.records)
    settling.join(past.records)
    # A cache that is behind what is settled need not know all of it.
    behind = any(ends.get(history, 0) < _last(past.ranges, history) for history in past.rows)
    parts[not behind, True].add(past.ranges)
    for _, part in each(tables, _survey, _in_order(tables, ends)):
        if part.fault is not None:
            tables.note("bronze", part.fault)
        for is_old, found in part.records.items():
            records.join(found)
            if is_old:
                settling.join(found)
        for kind, seen in part.seen.items():
            parts[kind].add(seen)
        for (history, is_old), number in part.rows.items():
            rows[history] += number
            old_rows[history] += number if is_old else 0
    found_in = {kind: joining.seen() for kind, joining in parts.items()}
    before, after = (
        joined(found_in[is_before, True], found_in[is_before, False]) for is_before in (True, False)
    )
    old = joined(found_in[True, True], found_in[False, True])
    return Survey(records, before, after, rows, Past(records=settling, ranges=old, rows=+old_rows))


def _in_order(tables: AuditTables, ends: Offsets) -> list[FileShare]:
    """Sort files by sequence, so that ranges merge early."""
    rows = files(tables.bronze).to_pylist()
    places = {
        row["path"]: (row["min.stream"] or "", row["min.created"] or "", row["min.seq"] or 0) for row in rows
    }
    return sorted(tables.pieces(tables.bronze, offsets=ends), key=lambda piece: places[piece.path.name])


def _last(ranges: SeenNumbers, history: History) -> int:
    known = ranges.ranges(hub_space(*history))
    return known[-1][1] if known else 0


_KINDS: Final = [(is_before, is_old) for is_before in (True, False) for is_old in (True, False)]


@dataclass(slots=True)
class _Surveyed:
    records: dict[bool, LedgerRecords] = field(
        default_factory=lambda: {True: LedgerRecords(), False: LedgerRecords()}
    )
    """Ledger records by whether they are old."""
    seen: dict[tuple[bool, bool], SeenNumbers] = field(default_factory=dict)
    """Identities by position relative to the given sequences and by age."""
    rows: Counter[tuple[History, bool]] = field(default_factory=Counter)
    """Rows per history by age."""
    fault: UnreadableError | None = None
    """Why ledger records are unreadable."""


def _survey(piece: FileShare) -> _Surveyed:
    found = _Surveyed()
    with parquet_file(piece.path) as file:
        for ids in together(_identities(file, piece, found)):
            done, old = upto(ids, piece.offsets), piece.old_rows(ids)
            for is_before, is_old in _KINDS:
                mask = (done == is_before) & (old == is_old)
                if not mask.any():
                    continue
                rows = ids if mask.all() else ids.filter(pa.array(mask))
                found.seen.setdefault((is_before, is_old), SeenNumbers()).add(rows)
                for row in rows.group_by(HISTORY).aggregate([([], "count_all")]).to_pylist():
                    found.rows[(row["stream"], row["created"]), is_old] += row["count_all"]
    return found


def _identities(file: ParquetFile, piece: FileShare, found: _Surveyed) -> Iterator[pa.Table]:
    for group in row_groups(file, piece):
        ids = piece.chosen(columns_of(file, piece.path, group, _IDENTITY))
        try:
            for row, is_old in _records(file, piece, group, ids):
                found.records[is_old].add(row)
        except UnreadableError as error:
            # What the rows are is known without their payloads.
            found.fault = error
        yield ids


def _records(
    file: ParquetFile, piece: FileShare, group: int, ids: pa.Table
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the ledger records of a row group with their age. Most groups have none, so payloads are read
    late.
    """
    if not pc.any(_said(ids)).as_py():
        return
    rows = piece.chosen(columns_of(file, piece.path, group, [*_IDENTITY, "payload"]))
    rows = rows.filter(_said(rows))
    yield from zip(rows.to_pylist(), piece.old_rows(rows).tolist(), strict=True)


def _said(rows: pa.Table) -> Any:
    return pc.and_(pc.ends_with(rows["subject"], "._ledger"), pc.is_valid(rows["class"]))
