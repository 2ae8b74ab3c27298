"""Tables that are a pure function of `bronze` up to the sequences they carry as transactions: rolled forward
when they are behind, made again when they are ahead, lost or damaged, replaced as a whole."""

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
    """For a caller that only looks: the job that makes the table again says so."""


def current(lake: Place, name: str, upto: Sequence[StreamHistory]) -> Table | None:
    """The table; None without one, or when it holds more of a history than its `done`."""
    table = open_table(lake, name)
    if table is None or any(_held(table, history) > (history.done or 0) for history in upto):
        return None
    return table


def note_damage(name: str, error: UnreadableError, note: Note) -> None:
    """Say that a table is made again, for a file of it is damaged; raise the `error` where a file is there
    and was not given out."""
    if not error.damaged:
        raise error
    note(f"{error}; the table {name} is made again from bronze")


def load(lake: Place, name: str, upto: Sequence[StreamHistory], note: Note) -> tuple[Table | None, pa.Table]:
    """The `current` table and its rows; no table and no rows also when a file of it is damaged, which is
    noted. Raises `TableError`, and `UnreadableError` where a file is there and was not given out."""
    table = current(lake, name, upto)
    if table is not None:
        try:
            return table, rows(table, SCHEMAS[name].names)
        except UnreadableError as error:
            note_damage(name, error, note)
    return None, SCHEMAS[name].empty_table()


def behind(table: Table | None, upto: Sequence[StreamHistory]) -> Iterator[tuple[StreamHistory, int]]:
    """Each history with the sequence up to which the table holds it; from the beginning without one."""
    for history in upto:
        yield history, 0 if table is None else _held(table, history)


def save(
    lake: Place, name: str, rows: pa.Table, upto: Sequence[StreamHistory], beside: Table | None = None
) -> None:
    """Keep the rows for the next run: in the place of all others, or with those of the snapshot `beside`. A
    writer that was faster is as good."""
    table = beside or ensure_table(lake, name)
    files = write_rows(lake, name, rows)
    offsets = offsets_of(upto) if beside else all_offsets(lake, upto)
    try:
        table.commit(files, offsets, replace=beside is None)
    except ConflictError:
        return


def offsets_of(upto: Sequence[StreamHistory]) -> dict[str, int]:
    """The transactions of rows that hold each history up to its `done`."""
    return {history.refined: history.done or 0 for history in upto}


def all_offsets(lake: Place, upto: Sequence[StreamHistory]) -> dict[str, int]:
    """The transactions of a table whose rows are all replaced, by its snapshot that was opened before: 0 of a
    history which this run does not know. Another run that has it may have saved it, and with its rows goes
    what the table says of it."""
    bronze = open_table(lake, "bronze")
    histories = [] if bronze is None else stream_history.all_of(bronze)
    return {history.refined: 0 for history in histories} | offsets_of(upto)


def _held(table: Table, history: StreamHistory) -> int:
    return table.offset(history.refined) or 0
