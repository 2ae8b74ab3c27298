"""Tables that are a pure function of `bronze` up to the sequences they carry as transactions: rolled forward
when they are behind, made again when they are ahead, lost or damaged, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from hub_jobs.tables.delta import ConflictError, Table, ensure_table, open_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.places import Place, UnreadableError
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import SCHEMAS
from hub_jobs.tables.stream_history import StreamHistory

Note = Callable[[str], None]


def unsaid(_: str) -> None:
    """For a caller that only looks: the job that makes the table again says so."""


def load(lake: Place, name: str, upto: Sequence[StreamHistory], note: Note) -> tuple[Table | None, pa.Table]:
    """The table and its rows. No table and no rows when it holds more of a history than its `done`, or
    when a file of it is damaged, which is noted. Raises `TableError`, and `UnreadableError` where a file is
    there and was not given out."""
    nothing = SCHEMAS[name].empty_table()
    table = open_table(lake, name)
    if table is None or any(_held(table, history) > (history.done or 0) for history in upto):
        return None, nothing
    try:
        return table, rows(table, SCHEMAS[name].names)
    except UnreadableError as error:
        if not error.damaged:
            raise
        note(f"{error}; the table {name} is made again from bronze")
        return None, nothing


def behind(table: Table | None, upto: Sequence[StreamHistory]) -> Iterator[tuple[StreamHistory, int]]:
    """Each history with the sequence up to which the table holds it; from the beginning without one."""
    for history in upto:
        yield history, 0 if table is None else _held(table, history)


def save(lake: Place, name: str, rows: pa.Table, upto: Sequence[StreamHistory]) -> None:
    """Keep the rows for the next run, in the place of all others. A writer that was faster is as good."""
    table = ensure_table(lake, name)
    with PartWriter(lake, name) as writer:
        writer.write(rows)
    try:
        table.commit(writer.files, {history.refined: history.done or 0 for history in upto}, replace=True)
    except ConflictError:
        return


def _held(table: Table, history: StreamHistory) -> int:
    return table.offset(history.refined) or 0
