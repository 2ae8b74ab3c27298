"""The histories of a hub's stream, and what each file of `bronze` holds of them.

A stream that is recreated begins another history, and so does one that was restored from a copy: its
sequences come again with other messages under the same `created`, which the server does not tell. Jobs take
the name of a history, the column `created`, as a mere text.

A file that the jobs wrote holds rows of one history, and the log says which. Other programs write rows of
several histories together, and may omit or shorten bounds: such a file is opened."""

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
    from hub_jobs.source.streams import Columns, StreamInfo

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
    """One history of a stream, and the sequence up to which bronze holds it; `done` is None before the first
    commit."""

    stream: str
    created: str
    done: int | None = None
    end: MessageMark | None = None
    """The message where bronze ends, where `current` says it; None also where that is a gap."""

    @property
    def history(self) -> History:
        """The two columns by which rows name it."""
        return self.stream, self.created

    @property
    def made(self) -> datetime | None:
        """When the stream was made, by the hub's clock; None where its name does not say."""
        try:
            return datetime.fromisoformat(self.created.partition("~")[0]).astimezone(UTC)
        except ValueError:
            return None

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


def open_bronze(lake: Place) -> Table | None:
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
    bronze ends is another one in the stream, or was gone from it."""
    last, following = _newest(bronze, info)
    if last.done is None:
        return last
    end = _end_of(bronze, last, last.done)
    # Where bronze ends with a gap any message is another one: what was gone from a stream never comes again.
    is_put_back = differs(conn, info, end or MessageMark(last.done, 0, b""))
    return following if is_put_back else replace(last, end=end)


def _newest(bronze: Table, info: StreamInfo) -> tuple[StreamHistory, StreamHistory]:
    names = _names(info.name, info.created)
    last = next(names)
    for following in names:
        if bronze.offset(following.ingested) is None:
            return StreamHistory(last.stream, last.created, bronze.offset(last.ingested)), following
        last = following
    raise AssertionError("names do not end")


def ingested_to(bronze: Table, stream: str, created: str) -> int:
    """The highest sequence that bronze holds of any history of a stream that was made then, 0 for none."""
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
    """What tells a message of a stream from another one under the same sequence: when it arrived, in
    microseconds since 1970, and its digest."""

    seq: int
    arrived: int
    digest: bytes


def last_of(columns: Columns) -> MessageMark:
    """The mark of the last of some messages."""
    seq, moment_ns = int(columns.seqs[-1]), int(columns.timestamps_ns[-1])
    return MessageMark(seq, moment_ns // 1000, digest(columns.payloads[-1].as_py()))


def differs(conn: Connection, info: StreamInfo, mark: MessageMark) -> bool:
    """Whether a stream has another message under that sequence, or ends before it, so that it was restored
    from a copy. One that it no longer has says nothing."""
    if info.last_seq < mark.seq:
        return True
    if info.first_seq > mark.seq:
        return False
    from hub_jobs.source.ranges import read_columns

    found = read_columns(conn, info.name, mark.seq, mark.seq, created=info.created, allow_lost=True)
    return any(last_of(columns) != mark for columns in found)


def all_of(bronze: Table) -> list[StreamHistory]:
    """Every history that bronze holds rows of, with what is ingested of it."""
    one, others = _of_one_history(files(bronze))
    named = set[History]()
    if one.num_rows:
        pairs = one.group_by(["min.stream", "min.created"]).aggregate([])
        named.update(zip(pairs["min.stream"].to_pylist(), pairs["min.created"].to_pylist(), strict=True))
    named.update(part.history for part in _file_histories(bronze, others))
    known = [StreamHistory(*history) for history in sorted(named)]
    return [replace(history, done=bronze.offset(history.ingested)) for history in known]


def refined(known: Iterable[StreamHistory], readings: Table) -> list[StreamHistory]:
    """The same histories with what is refined of each in the place of what is ingested."""
    return [replace(history, done=readings.offset(history.refined) or 0) for history in known]


def offsets(known: Iterable[StreamHistory], table: Table | None) -> dict[History, int]:
    """Up to which sequence of each history a table holds what refine made of it; all 0 without a table."""
    return {history.history: 0 if table is None else table.offset(history.refined) or 0 for history in known}


class FileHistory(NamedTuple):
    """What a file holds of one history, by stream and `created`: its first and last sequence, its latest
    arrival, its rows, and its share of the file's bytes. `path` is below the table."""

    history: History
    path: str
    first: int
    last: int
    arrived: datetime
    rows: int
    size: int


def file_histories(bronze: Table, after: int | None = None) -> list[FileHistory]:
    """All that the files of a snapshot hold. Of those that end at a sequence up to `after` some may be left
    out: what is old costs next to nothing."""
    found = files(bronze)
    if after is not None and "max.seq" in found.column_names:
        found = found.filter(pc.fill_null(pc.greater(found["max.seq"], after), True))
    return _file_histories(bronze, found)


def last_file_histories(bronze: Table) -> list[FileHistory]:
    """What the files hold in which a history ends; some of the others may be among them."""
    one, others = _of_one_history(files(bronze))
    if one.num_rows:
        ends = one.group_by(["min.stream", "min.created"]).aggregate([("max.seq", "max")])
        one = one.filter(pc.is_in(one["max.seq"], value_set=ends["max.seq_max"]))
    return _file_histories(bronze, pa.concat_tables([one, others]))


def _file_histories(bronze: Table, found: pa.Table) -> list[FileHistory]:
    columns = [bounds(found, name) for name in (*_BOUNDS, "num_records", "path", "size_bytes")]
    return [part for row in zip(*columns, strict=True) for part in _of_file(bronze, *row)]


def mixed_files(found: Iterable[FileHistory]) -> set[str]:
    """The paths of files that hold rows of several histories."""
    return {path for path, number in Counter(file.path for file in found).items() if number > 1}


def _of_one_history(found: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Those of `files` of which the log says all that `_of_file` asks, and the others."""
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
    """A file is never changed, so it is looked into once."""
    rows: pa.Table = parquet_columns(path, ["stream", "created", "seq", "arrived"])
    grouped = rows.group_by(["stream", "created"]).aggregate(
        [("seq", "min"), ("seq", "max"), ("seq", "count"), ("arrived", "max")]
    )
    found: list[dict[str, Any]] = grouped.filter(pc.is_valid(grouped["stream"])).to_pylist()
    return found
