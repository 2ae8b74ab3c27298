"""Which history of a hub's stream a row belongs to. A stream that is made anew begins another, and so does
one that was put back from a copy: its sequences come again with other messages under the same `created`,
which the server does not tell. Jobs take the name of a history, the column `created`, for a mere text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa

from agent.contract import HUB_DOMAIN
from hub_jobs.source.wire import Connection, StreamInfo, read_columns
from hub_jobs.tables import Condition, Table, TableError, open_table
from hub_jobs.tables.histories import held
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import TIME, digest


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """One history of a stream, and the sequence up to which bronze holds it; `done` is None before the first
    commit."""

    stream: str
    created: str
    done: int | None = None

    @property
    def history(self) -> History:
        """The two columns by which rows name it."""
        return self.stream, self.created

    def rows(self, after: int, to: int) -> list[Condition]:
        """Which rows of a table came of its sequences above `after` and up to `to`."""
        return [
            ("stream", "=", self.stream),
            ("created", "=", self.created),
            ("seq", ">", after),
            ("seq", "<=", to),
        ]

    @property
    def ingested(self) -> str:
        """The transaction of bronze that says up to which sequence it was ingested."""
        return f"nats:{HUB_DOMAIN}/{self.stream}@{self.created}"

    @property
    def refined(self) -> str:
        """The transaction of every table that refine writes, up to which sequence it was refined."""
        return f"refine:{HUB_DOMAIN}/{self.stream}@{self.created}"

    @property
    def thinned(self) -> str:
        """The transaction of bronze that says up to which sequence its payloads are dropped."""
        return f"thin:{HUB_DOMAIN}/{self.stream}@{self.created}"


def opened(lake: Place) -> Table | None:
    """Bronze, None before its first commit. Raises `TableError`, also when it was deleted and what came of it
    was not: a new one would be without all that the hub has purged, and repeats of that would be readings
    again."""
    bronze = open_table(lake, "bronze")
    readings = None if bronze is not None else open_table(lake, "readings")
    if readings is not None and readings.delta.version() > 0:
        raise TableError(
            f"table {lake / 'bronze'} is gone, and {readings.path} holds what came of it: put bronze back "
            "from a copy, or begin a new lake with what the hub still has"
        )
    return bronze


def current(bronze: Table, info: StreamInfo, conn: Connection) -> StreamHistory:
    """The history that the stream has now: the last one that bronze knows of it, unless the message where
    bronze ends is another one in the stream."""
    last, following = _newest(bronze, info)
    if last.done is not None and _put_back(bronze, last, info, conn):
        return following
    return last


def _newest(bronze: Table, info: StreamInfo) -> tuple[StreamHistory, StreamHistory]:
    names = _names(info)
    last = next(names)
    for following in names:
        if bronze.offset(following.ingested) is None:
            return StreamHistory(last.stream, last.created, bronze.offset(last.ingested)), following
        last = following
    raise AssertionError("names do not end")


def _names(info: StreamInfo) -> Iterator[StreamHistory]:
    yield StreamHistory(info.name, info.created)
    for number in count(2):
        yield StreamHistory(info.name, f"{info.created}~{number}")


def _put_back(bronze: Table, known: StreamHistory, info: StreamInfo, conn: Connection) -> bool:
    assert known.done is not None
    if info.last_seq < known.done:
        return True
    held = rows(bronze, ["arrived", "digest"], known.rows(known.done - 1, known.done))
    if not held.num_rows or info.first_seq > known.done:
        return False
    found = read_columns(conn, info.name, known.done, known.done, created=info.created, allow_lost=True)
    for columns in found:
        arrived = pa.array([columns.timestamps_ns[0] // 1000], pa.int64()).cast(TIME)[0]
        there = (arrived, digest(columns.payloads[0]))
        return there != (held["arrived"][0], held["digest"][0].as_py())
    return False


def all_of(bronze: Table) -> list[StreamHistory]:
    """Every history that bronze holds rows of, with what is ingested of it."""
    named = [StreamHistory(*history) for history in sorted({one.history for one in held(bronze)})]
    return [replace(one, done=bronze.offset(one.ingested)) for one in named]


def refined(known: Iterable[StreamHistory], readings: Table) -> list[StreamHistory]:
    """The same histories with what is refined of each in the place of what is ingested."""
    return [replace(one, done=readings.offset(one.refined) or 0) for one in known]


def offsets(known: Iterable[StreamHistory], table: Table | None) -> dict[History, int]:
    """Up to which sequence of each history a table holds what refine made of it; all 0 without a table."""
    return {one.history: 0 if table is None else table.offset(one.refined) or 0 for one in known}
