"""Keeps tables that are a pure function of `bronze` up to the sequences in their transactions.

A table behind bronze is extended; a table ahead, lost or damaged is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import ConflictError, Table, ensure_table, open_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import SCHEMAS
from hub_jobs.tables.stream_history import StreamHistory

Note = Callable[[str], None]


def unsaid(_: str) -> None:
    """Discards notes; the job that makes the table again reports them."""


def current(lake: Place, name: str, upto: Sequence[StreamHistory]) -> Table | None:
    """Return the table, None when it is missing or ahead of `done` in a history."""
    table = open_table(lake, name)
    if table is None or any(_held(table, history) > (history.done or 0) for history in upto):
        return None
    return table


def note_damage(name: str, error: UnreadableError, note: Note) -> None:
    """Note that a damaged table is made again. Raises `error` when the file exists but could not be read."""
    if not error.damaged:
        raise error
    note(f"{error}; the table {name} is made again from bronze")


def load(lake: Place, name: str, upto: Sequence[StreamHistory], note: Note) -> tuple[Table | None, pa.Table]:
    """Return the `current` table and its rows; nothing when it is missing or damaged, and damage is noted.

    Raises `TableError`, and `UnreadableError` when a file exists but could not be read.
    """
    table = current(lake, name, upto)
    if table is not None:
        try:
            return table, rows(table, SCHEMAS[name].names)
        except UnreadableError as error:
            note_damage(name, error, note)
    return None, SCHEMAS[name].empty_table()


def behind(table: Table | None, upto: Sequence[StreamHistory]) -> Iterator[tuple[StreamHistory, int]]:
    """Yield each history with the sequence up to which the table holds it, 0 for nothing."""
    for history in upto:
        yield history, 0 if table is None else _held(table, history)


def save(
    lake: Place, name: str, rows: pa.Table, upto: Sequence[StreamHistory], beside: Table | None = None
) -> None:
    """Store the rows, replacing all others or extending the snapshot `beside`. Ignores a faster writer's
    conflict.
    """
    table = beside or ensure_table(lake, name)
    files = write_rows(lake, name, rows)
    offsets = offsets_of(upto) if beside else all_offsets(lake, upto)
    try:
        table.commit(files, offsets, replace=beside is None)
    except ConflictError:
        return


def offsets_of(upto: Sequence[StreamHistory]) -> dict[str, int]:
    return {history.refined: history.done or 0 for history in upto}


def all_offsets(lake: Place, upto: Sequence[StreamHistory]) -> dict[str, int]:
    """Return the transactions for replacing all rows of the snapshot that was opened before.

    Histories unknown to this run get 0, because their rows are replaced as well.
    """
    bronze = open_table(lake, "bronze")
    histories = [] if bronze is None else stream_history.all_of(bronze)
    return {history.refined: 0 for history in histories} | offsets_of(upto)


def _held(table: Table, history: StreamHistory) -> int:
    return table.offset(history.refined) or 0
