"""Decides what audits may skip: data that arrived before a whole hour, once it is refined and in order.

A batch out of order keeps its hour and later ones unsettled.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from hub_jobs.audit.rows.pieces import Past, UnsettledError
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.audit.rows.survey import Survey
from hub_jobs.audit.rows.totals import RowTotals
from hub_jobs.audit.settled import past as settled
from hub_jobs.audit.settled.files import mark_of, settled_files
from hub_jobs.tables.delta import ConflictError, Table
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import files, rows
from hub_jobs.tables.stream_history import FileHistory, StreamHistory, last_file_histories
from hub_jobs.times import HOUR, at_micros, micros

_GRACE: Final = HOUR
"""The last hour stays unsettled, for repeats and corrections."""
SKEW: Final = timedelta(days=1)
"""Assumed lead of the hub's clock."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled moment (microseconds since 1970, 0 for none), and why an audit read everything again."""

    until: int = 0
    read_again: str = ""


def open_past(table: Table, tables: AuditTables, now: datetime) -> Past:
    """Return the settled data of the tables. Raises `UnsettledError`."""
    past, marks = settled.read(table)
    if not past.until:
        return past
    newest = newest_arrival(tables.bronze, now)
    if newest is not None and past.until > micros(newest):
        raise UnsettledError(
            f"what arrived before {at_micros(past.until).isoformat()} was taken for settled, and the newest "
            f"message arrived at {newest.isoformat()}: the hub's clock was ahead, or this machine's is behind"
        )
    known = {table.name: settled_files(table, marks[table.name], past.until) for table in tables.existing}
    return replace(past, known=known)


def next_cut(tables: AuditTables, now: datetime) -> int:
    """Return the moment up to which data may be settled next; 0 for no progress."""
    if any(_lacks_arrivals(table) for table in tables.existing):
        return 0
    newest = newest_arrival(tables.bronze, now)
    if newest is None:
        return 0
    cut = micros(newest) // HOUR * HOUR - _GRACE
    return cut if cut > tables.past.until else 0


def earlier_cut(tables: AuditTables, rows: RowTotals) -> int:
    """Return the hour before the first unsettleable batch; 0 when none or needless."""
    waiting = rows.settling.waiting
    if not tables.cut or waiting is None:
        return 0
    cut = min(waiting // HOUR * HOUR, tables.cut - HOUR)
    return cut if cut > tables.past.until else 0


def settle(lake: Place, table: Table, tables: AuditTables, survey: Survey, rows: RowTotals) -> int:
    """Store the data in order for the next audit. Returns the settled moment."""
    if rows.settling.waiting is not None and not tables.past.until and settled.settled_until(table):
        # All was read and can't be settled: what was taken for settled is to be read again, too.
        with suppress(ConflictError):
            settled.save(lake, table, Past(), {})
    if not tables.cut or rows.settling.waiting is not None:
        return tables.past.until
    of_rows = rows.settling
    past = replace(
        survey.settling,
        until=tables.cut,
        runs=of_rows.runs,
        findings=of_rows.findings,
        classes=of_rows.classes,
        hours=settled.with_hours(tables.past, of_rows.hours),
    )
    try:
        settled.save(lake, table, past, {table.name: mark_of(table) for table in tables.existing})
    except ConflictError:  # another audit was faster
        return tables.past.until
    return past.until


def newest_arrival(bronze: Table, now: datetime) -> datetime | None:
    """Return the last arrival of any stream, None without one.

    Ignores arrivals after `now`, from a hub clock that was ahead, unless there are no others.
    """
    last: dict[History, FileHistory] = {}
    for file in last_file_histories(bronze):
        last[file.history] = max(last.get(file.history, file), file, key=lambda each: each.last)
    end = now + SKEW
    arrivals = [_last_arrival(bronze, file, end) for file in last.values()]
    return max([arrived for arrived in arrivals if arrived <= end] or arrivals, default=None)


def _last_arrival(bronze: Table, file: FileHistory, end: datetime) -> datetime:
    """Return the last arrival in a file; reads the file only if some arrived after `end`."""
    if file.arrived <= end:
        return file.arrived
    where = StreamHistory(*file.history).rows(file.last - 1, file.last)
    with suppress(UnreadableError):  # the audit names it
        return max(rows(bronze, ["arrived"], where)["arrived"].to_pylist(), default=file.arrived)
    return file.arrived


def _lacks_arrivals(table: Table) -> bool:
    found = files(table)
    name = "null_count.arrived"
    return name in found.column_names and (pc.sum(found[name]).as_py() or 0) > 0
