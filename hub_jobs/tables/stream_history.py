"""Tracks the histories of a hub stream, and their content in each file of `bronze`.

A recreated stream begins a new history. So does a stream restored from a copy, which repeats sequences under
the same `created`. The jobs write files with rows of one history, and the log names it; files of other
programs are opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, reduce
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import HUB_DOMAIN
from hub_jobs.tables.delta import Table, TableError, open_table
from hub_jobs.tables.parquet_reading import parquet_columns
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import Condition, bounds, files, rows
from hub_jobs.tables.schemas import digest
from hub_jobs.times import micros

if TYPE_CHECKING:
    from hub_jobs.source.connection import Connection
    from hub_jobs.source.streams import Columns, HubStream

_BOUNDS: Final = (
    "min.stream",
    "max.stream",
    "min.created",
    "max.created",
    "min.seq",
    "max.seq",
    "max.arrived",
)


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """One history of a stream and the sequence up to which bronze holds it; `done` is None before
    a commit.
    """

    stream: str
    created: str
    done: int | None = None
    end: MessageMark | None = None
    """The last message in bronze, set by `current`; None in a gap."""

    @property
    def history(self) -> History:
        """The two columns that name it in rows."""
        return self.stream, self.created

    @property
    def made(self) -> datetime | None:
        """The stream's creation time by the hub's clock, None when its name has none."""
        try:
            return datetime.fromisoformat(self.created.partition("~")[0]).astimezone(UTC)
        except ValueError:
            return None

    def rows(self, after: int, to: int) -> list[Condition]:
        """Return conditions for rows with sequences above `after` up to `to`."""
        return [
            ("stream", "=", self.stream),
            ("created", "=", self.created),
            ("seq", ">", after),
            ("seq", "<=", to),
        ]

    @property
    def ingested(self) -> str:
        """The bronze transaction with the last ingested sequence."""
        return f"nats:{HUB_DOMAIN}/{self.stream}@{self.created}"

    @property
    def refined(self) -> str:
        """The transaction of refine's tables with the last refined sequence."""
        return f"refine:{HUB_DOMAIN}/{self.stream}@{self.created}"

    @property
    def thinned(self) -> str:
        """The bronze transaction with the sequence up to which payloads are dropped."""
        return f"thin:{HUB_DOMAIN}/{self.stream}@{self.created}"


def open_bronze(lake: Place) -> Table | None:
    """Return bronze, None before its first commit.

    Raises `TableError`, also when bronze was deleted but tables made from it exist: purged repeats would
    become readings again.
    """
    bronze = open_table(lake, "bronze")
    readings = None if bronze is not None else open_table(lake, "readings")
    if readings is not None and readings.delta.version() > 0:
        raise TableError(
            f"table {lake / 'bronze'} is gone, and {readings.path} holds what came of it: put bronze back "
            "from a copy, or begin a new lake with what the hub still has"
        )
    return bronze


def current(bronze: Table, info: HubStream, conn: Connection) -> StreamHistory:
    """Return the stream's present history.

    That is bronze's last one, unless the message at bronze's end differs or is gone from the stream.
    """
    last, following = _newest(bronze, info)
    if last.done is None:
        return last
    end = _end_of(bronze, last, last.done)
    # Where bronze ends with a gap any message is another one: what was gone from a stream never comes again.
    is_put_back = differs(conn, info, end or MessageMark(last.done, 0, b""))
    return following if is_put_back else replace(last, end=end)


def _newest(bronze: Table, info: HubStream) -> tuple[StreamHistory, StreamHistory]:
    names = _names(info.name, info.created)
    last = next(names)
    for following in names:
        if bronze.offset(following.ingested) is None:
            return StreamHistory(last.stream, last.created, bronze.offset(last.ingested)), following
        last = following
    raise AssertionError("names do not end")


def ingested_to(bronze: Table, stream: str, created: str) -> int:
    """Return the highest sequence in bronze for any history created at that time, 0 for none."""
    done = 0
    for history in _names(stream, created):
        offset = bronze.offset(history.ingested)
        if offset is None:
            return done
        done = max(done, offset)
    raise AssertionError("names do not end")


def _names(stream: str, created: str) -> Iterator[StreamHistory]:
    yield StreamHistory(stream, created)
    for number in count(2):
        yield StreamHistory(stream, f"{created}~{number}")


def _end_of(bronze: Table, known: StreamHistory, done: int) -> MessageMark | None:
    for row in rows(bronze, ["arrived", "digest"], known.rows(done - 1, done)).to_pylist():
        return MessageMark(done, micros(row["arrived"]), row["digest"])
    return None


class MessageMark(NamedTuple):
    """Distinguishes messages under one sequence by arrival (microseconds since 1970) and digest."""

    seq: int
    arrived: int
    digest: bytes


def last_of(columns: Columns) -> MessageMark:
    """Return the mark of the last message."""
    seq, moment_ns = int(columns.seqs[-1]), int(columns.timestamps_ns[-1])
    return MessageMark(seq, moment_ns // 1000, digest(columns.payloads[-1].as_py()))


def differs(conn: Connection, info: HubStream, mark: MessageMark) -> bool:
    """Tell whether a stream was restored from a copy: the sequence has another message, or the stream ends
    before it.

    A missing message proves nothing.
    """
    if info.last_seq < mark.seq:
        return True
    if info.first_seq > mark.seq:
        return False
    from hub_jobs.source.ranges import read_columns

    found = read_columns(conn, info.name, mark.seq, mark.seq, created=info.created, allow_lost=True)
    return any(last_of(columns) != mark for columns in found)


def all_of(bronze: Table) -> list[StreamHistory]:
    """Return every history in bronze with its last ingested sequence."""
    one, others = _of_one_history(files(bronze))
    named = set[History]()
    if one.num_rows:
        pairs = one.group_by(["min.stream", "min.created"]).aggregate([])
        named.update(zip(pairs["min.stream"].to_pylist(), pairs["min.created"].to_pylist(), strict=True))
    named.update(part.history for part in _file_histories(bronze, others))
    known = [StreamHistory(*history) for history in sorted(named)]
    return [replace(history, done=bronze.offset(history.ingested)) for history in known]


def refined(known: Iterable[StreamHistory], readings: Table) -> list[StreamHistory]:
    """Return the histories with `done` set to the last refined sequence."""
    return [replace(history, done=readings.offset(history.refined) or 0) for history in known]


def offsets(known: Iterable[StreamHistory], table: Table | None) -> dict[History, int]:
    """Return the last refined sequence of each history, 0 without a table."""
    return {history.history: 0 if table is None else table.offset(history.refined) or 0 for history in known}


class FileHistory(NamedTuple):
    """Contents of one history in a file: sequences, latest arrival, rows and its share of bytes. `path` is
    below the table.
    """

    history: History
    path: str
    first: int
    last: int
    arrived: datetime
    rows: int
    size: int


def file_histories(bronze: Table, after: int | None = None) -> list[FileHistory]:
    """Return the file contents of a snapshot. May omit old files that end at or before `after`."""
    found = files(bronze)
    if after is not None and "max.seq" in found.column_names:
        found = found.filter(pc.fill_null(pc.greater(found["max.seq"], after), True))
    return _file_histories(bronze, found)


def last_file_histories(bronze: Table) -> list[FileHistory]:
    """Return file contents with the end of each history, and possibly others."""
    one, others = _of_one_history(files(bronze))
    if one.num_rows:
        ends = one.group_by(["min.stream", "min.created"]).aggregate([("max.seq", "max")])
        one = one.filter(pc.is_in(one["max.seq"], value_set=ends["max.seq_max"]))
    return _file_histories(bronze, pa.concat_tables([one, others]))


def _file_histories(bronze: Table, found: pa.Table) -> list[FileHistory]:
    columns = [bounds(found, name) for name in (*_BOUNDS, "num_records", "path", "size_bytes")]
    return [part for row in zip(*columns, strict=True) for part in _of_file(bronze, *row)]


def mixed_files(found: Iterable[FileHistory]) -> set[str]:
    """Return the paths of files with several histories."""
    return {path for path, number in Counter(file.path for file in found).items() if number > 1}


def _of_one_history(found: pa.Table) -> tuple[pa.Table, pa.Table]:
    if any(name not in found.column_names for name in (*_BOUNDS, "num_records")):
        return found.slice(0, 0), found
    conditions = [
        pc.equal(found["min.stream"], found["max.stream"]),
        pc.equal(found["min.created"], found["max.created"]),
        *(pc.is_valid(found[name]) for name in (*_BOUNDS, "num_records")),
    ]
    is_one = pc.fill_null(reduce(pc.and_, conditions), False)
    return found.filter(is_one), found.filter(pc.invert(is_one))


def _of_file(bronze: Table, *row: Any) -> Iterator[FileHistory]:
    stream, stream_to, created, created_to, first, last, arrived, rows, path, size = row
    is_one = stream == stream_to and created == created_to
    if is_one and None not in (stream, created, first, last, arrived, rows):
        yield FileHistory((stream, created), path, first, last, arrived, rows, size)
        return
    parts = _parts_of_file(bronze.path / path)
    total = sum(part["seq_count"] for part in parts)
    for part in parts:
        yield FileHistory(
            (part["stream"], part["created"]),
            path,
            part["seq_min"],
            part["seq_max"],
            part["arrived_max"],
            part["seq_count"],
            size * part["seq_count"] // total,
        )


@lru_cache(maxsize=10_000)
def _parts_of_file(path: Place) -> list[dict[str, Any]]:
    """Inspect a file once; files never change."""
    rows: pa.Table = parquet_columns(path, ["stream", "created", "seq", "arrived"])
    grouped = rows.group_by(["stream", "created"]).aggregate(
        [("seq", "min"), ("seq", "max"), ("seq", "count"), ("arrived", "max")]
    )
    found: list[dict[str, Any]] = grouped.filter(pc.is_valid(grouped["stream"])).to_pylist()
    return found
