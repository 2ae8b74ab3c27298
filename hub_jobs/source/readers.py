"""Reads `format("nats")` in batches, with filters, or as a stream.

The driver plans (`plan`, `progress`, `rows`) and tasks read; only ranges and the secret's path travel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from hub_jobs.source import progress
from hub_jobs.source.connection import Connection
from hub_jobs.source.options import ReadOptions
from hub_jobs.source.plan import Offsets, Range, resolve, split, usual_partitions
from hub_jobs.source.progress import StreamPositions
from hub_jobs.source.protocol import SourceApiError, Unreachable, WireError
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.rows import RangeFilter, narrowed, to_batch
from hub_jobs.source.streams import HubStream, sequence_at, stream_info, stream_names

if TYPE_CHECKING:
    import pyarrow as pa

_NO_SUCH_STREAM: Final = 10059
_AWAY_SECONDS: Final = 30.0
"""Time that a streaming query waits for an unreachable server."""
_IDLE_SECONDS: Final = 0.1
"""Polling interval of an idle query; Spark's own would be a hundred times a second."""
_KEPT_SECONDS: Final = 15.0
"""Time for which an idle connection is reused, before it may miss pings."""

_T = TypeVar("_T")


@dataclass
class RangePartition(InputPartition):
    """One task's range."""

    range: Range


class NatsReader(DataSourceReader):
    """Reads what the streams hold at planning. `parallelism` is the number of parallel tasks."""

    def __init__(self, options: ReadOptions, parallelism: int = 1) -> None:
        self._options = options
        self._parallelism = parallelism
        self._limits = RangeFilter()

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges, without later arrivals."""
        options, limits = self._options, self._limits
        with Connection(options.server) as conn:
            ranges = [
                _within(conn, _range(conn, info, options), info, limits)
                for info in _infos(conn, options).values()
            ]
        return _split(ranges, options, self._parallelism)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow batches."""
        return _read(self._options, self._options.filter_subjects or self._limits.subjects, partition)


class NatsPushdownReader(NatsReader):
    """Narrows the read by filters on `seq`, `timestamp` and `subject`. Spark needs
    `spark.sql.python.filterPushdown.enabled`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use the supported filters; Spark applies all again."""
        for filter_ in filters:
            operator = _OPERATORS.get(type(filter_))
            column: tuple[str, ...] = getattr(filter_, "attribute", ())
            if operator is not None and len(column) == 1:
                self._limits = narrowed(self._limits, operator, column[0], getattr(filter_, "value", None))
        return filters


_OPERATORS: Final[Mapping[type[Filter], str]] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.In: "in",
    spark.StringStartsWith: "prefix",
}


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow. Offsets are positions per stream (`progress`), so a repeated batch is
    equal.
    """

    def __init__(self, options: ReadOptions, parallelism: int = 1) -> None:
        self._options = options
        self._parallelism = parallelism
        self._target: StreamPositions | None = None
        self._seen: StreamPositions = {}
        self._conn: Connection | None = None
        self._used = self._idle = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_conn": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self._options

        def find(conn: Connection) -> StreamPositions:
            infos = _infos(conn, options)
            return progress.begun({name: _range(conn, info, options) for name, info in infos.items()})

        return progress.encode(self._ask(find))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the present end."""
        self._target = progress.ends(self._ask(lambda conn: _held(conn, self._options)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the next batch's end; `start` when there is nothing to read."""
        time.sleep(max(0.0, self._idle + _IDLE_SECONDS - time.monotonic()))
        options, known = self._options, progress.decode(start)
        positions = {stream: position for stream, position in known.items() if _asked_for(options, stream)}
        infos = self._ask(lambda conn: _held(conn, options))
        self._seen = progress.ends(infos)
        target = self._seen if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        after = progress.advance(positions, infos, target, most, options.fail_on_loss)
        end = progress.encode(known | after)
        self._idle = time.monotonic() if end == start else float("-inf")
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last known stream ends for the query's progress."""
        return progress.encode(self._seen) if self._seen else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        ranges = progress.ranges(progress.decode(start), progress.decode(end))
        if not ranges:
            return []
        infos = self._ask(lambda conn: _there(conn, [part.stream for part in ranges]))
        if not options.fail_on_loss:
            ranges = [progress.remaining(part, infos.get(part.stream)) for part in ranges]
        else:
            for part in ranges:
                progress.check(part, infos.get(part.stream))
        return _split(ranges, options, self._parallelism)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._options.filter_subjects, partition)

    def stop(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _ask(self, question: Callable[[Connection], _T]) -> _T:
        """Ask the server on a kept connection, with retries. Raises as `question`, Unreachable after half a
        minute.
        """

        def once() -> _T:
            if self._conn is not None and time.monotonic() - self._used > _KEPT_SECONDS:
                self.stop()
            if self._conn is None:
                self._conn = Connection(self._options.server)
            try:
                answer = question(self._conn)
            except Unreachable:
                self.stop()
                raise
            self._used = time.monotonic()
            return answer

        patient = Retrying(
            retry=retry_if_exception_type(Unreachable),
            stop=stop_after_delay(_AWAY_SECONDS),
            wait=wait_exponential_jitter(0.1, 3.0),
            reraise=True,
        )
        return patient(once)


def _infos(conn: Connection, options: ReadOptions) -> dict[str, HubStream]:
    """Return the streams to read; every named one, or at least one match, must exist."""
    if options.pattern is None:
        return {name: _info(conn, name) for name in options.streams}
    found = _held(conn, options)
    if not found:
        raise WireError(f"no stream matches {options.pattern.pattern}{_at(conn)}")
    return found


def _held(conn: Connection, options: ReadOptions) -> dict[str, HubStream]:
    """Return the existing streams to read."""
    if options.pattern is None:
        return _there(conn, options.streams)
    return _there(conn, [name for name in stream_names(conn) if _asked_for(options, name)])


def _asked_for(options: ReadOptions, stream: str) -> bool:
    if options.pattern is not None:
        return options.pattern.fullmatch(stream) is not None
    return stream in options.streams


def _there(conn: Connection, names: Iterable[str]) -> dict[str, HubStream]:
    found = {}
    for name in names:
        try:
            found[name] = stream_info(conn, name)
        except SourceApiError as error:
            if error.err_code != _NO_SUCH_STREAM:
                raise
    return found


def _info(conn: Connection, stream: str) -> HubStream:
    found = _there(conn, [stream])
    if not found:
        raise WireError(f"there is no stream {stream}{_at(conn)}: check the options stream and domain")
    return found[stream]


def _at(conn: Connection) -> str:
    return f" behind {conn.server.api_prefix} at {conn.server.url}"


def _range(conn: Connection, info: HubStream, options: ReadOptions) -> Range:
    def located(offsets: Offsets) -> Offsets:
        if offsets.moment is None:
            return offsets
        return offsets.located(info, sequence_at(conn, info.name, offsets.moment))

    return resolve(info, located(options.starting), located(options.ending), options.fail_on_loss)


def _within(conn: Connection, whole: Range, info: HubStream, limits: RangeFilter) -> Range:
    """Return a range restricted by limits; size 0 for none."""
    first, last = max(whole.first, limits.first), whole.last
    if limits.last is not None:
        last = min(last, limits.last)
    if limits.since is not None:
        first = max(first, sequence_at(conn, info.name, limits.since))
    if limits.until is not None:
        last = min(last, sequence_at(conn, info.name, limits.until) - 1)
    return replace(whole, first=first, last=max(last, first - 1))


def _split(ranges: Sequence[Range], options: ReadOptions, parallelism: int) -> list[InputPartition]:
    least = options.min_partitions or usual_partitions(ranges, parallelism)
    return [RangePartition(part) for part in split(ranges, least, options.max_records)]


def _read(
    options: ReadOptions, subjects: Sequence[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):
        # Spark makes one partition of None out of an empty plan.
        return
    part = partition.range
    with Connection(options.server) as conn:
        source_index = _info(conn, part.stream).source_index
        found = read_columns(
            conn,
            part.stream,
            part.first,
            part.last,
            filter_subjects=subjects,
            created=part.created,
            allow_lost=not options.fail_on_loss,
        )
        for columns in found:
            yield to_batch(part.stream, columns, source_index, options.include_headers)
