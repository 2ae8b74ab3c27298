"""`format("nats")` for Spark: the only module of the source that knows Spark. It decides nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hub_jobs.source.options import OptionError, ReadOptions, parse_options
from hub_jobs.source.plan import Range, resolve, split
from hub_jobs.source.rows import to_batch
from hub_jobs.source.wire import ApiError, Connection, StreamInfo, WireError, read_columns, stream_info

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

SCHEMA = StructType(
    [
        StructField("subject", StringType()),
        StructField("value", BinaryType()),
        StructField("stream", StringType()),
        StructField("seq", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("source_domain", StringType()),
        StructField("source_stream", StringType()),
        StructField("source_ident", StringType()),
        StructField("source_seq", LongType()),
        StructField("source_subject", StringType()),
        StructField("msg_id", StringType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)
"""The columns, as `rows.SCHEMA` has them in Arrow."""

_NO_SUCH_STREAM = 10059


class NatsDataSource(DataSource):
    """Streams of a NATS JetStream server as a table, one row a record, in fixed ranges of sequences.

    A range that is read twice gives the same rows. A read that could not be whole fails: it never returns
    less than it was asked for without saying so. Register it with
    ``spark.dataSource.register(NatsDataSource)``; it needs Spark 4.2 or newer, and Python 3.11 with pyarrow
    and nkeys where the tasks run.

    Options
    -------
    servers : str
        ``nats://host:port``, or ``tls://``; several with commas, tried in their order. Required.
    stream : str
        The stream; several with commas. Required.
    domain : str, optional
        The JetStream domain that holds the stream, when it is not the connected server's own.
    apiPrefix : str, default ``$JS.API``
        The prefix of JetStream's API, instead of `domain`, for an account that imports it under another one.
    seedFile : str, optional
        Path of an NKey seed. It must lie on the driver and on every executor and not be readable by others.
    creds : str, optional
        Path of a ``.creds`` file, likewise.
    secretEnv : str, optional
        Name of an environment variable, of driver and executors, that holds a seed or a ``.creds`` file's
        text. A secret itself is refused in every option, for Spark writes options into plans and logs.
    filterSubjects : str, optional
        Only records of these subjects, with commas; wildcards are NATS's.
    startingOffsets : str, default ``earliest``
        ``earliest``, ``latest`` or JSON by stream: ``{"TELEMETRY_0": 17}``. An offset is the sequence of the
        first record to read; -2 is earliest, -1 latest; ``{"seq": 17, "created": "..."}`` holds for that
        incarnation of the stream only.
    endingOffsets : str, default ``latest``
        The same; the record at this offset is not read.
    minPartitions : int, default 1
        At least so many partitions, when there are so many records.
    maxRecordsPerPartition : int, default 500000
        At most so many sequences in one partition.
    failOnDataLoss : bool, default true
        Fail when records that were asked for are no longer in the stream; ``false`` reads what is there.
    includeHeaders : bool, default false
        Fill the column ``headers``; it is null otherwise.
    """

    @classmethod
    def name(cls) -> str:
        """The name after ``format``."""
        return "nats"

    def schema(self) -> StructType:
        """The columns; there are no others."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the ranges that the options ask for. Raises OptionError when they are wrong."""
        options = parse_options(dict(self.options))
        if schema != SCHEMA:
            names = ", ".join(SCHEMA.names)
            raise OptionError(
                f"the columns of nats are fixed; leave schema(...) out and select from: {names}"
            )
        return NatsReader(options)


@dataclass
class RangePartition(InputPartition):
    """One task's range."""

    range: Range


class NatsReader(DataSourceReader):
    """Plans on the driver, reads in tasks; between them only ranges and the place of the secret travel."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ranges now: what arrives later is not read."""
        options = self._options
        with Connection(options.server) as conn:
            infos = [_info(conn, stream) for stream in options.streams]
        ranges = [resolve(info, options.starting, options.ending, options.fail_on_loss) for info in infos]
        return [RangePartition(one) for one in split(ranges, options.min_partitions, options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, as Arrow batches."""
        if not isinstance(partition, RangePartition):
            # Spark makes one partition of None out of an empty plan.
            return
        options, part = self._options, partition.range
        with Connection(options.server) as conn:
            source_index = _info(conn, part.stream).source_index
            found = read_columns(
                conn,
                part.stream,
                part.first,
                part.last,
                filter_subjects=options.filter_subjects,
                created=part.created,
                allow_lost=not options.fail_on_loss,
            )
            for columns in found:
                yield to_batch(part.stream, columns, source_index, options.include_headers)


def _info(conn: Connection, stream: str) -> StreamInfo:
    try:
        return stream_info(conn, stream)
    except ApiError as error:
        if error.err_code != _NO_SUCH_STREAM:
            raise
        place = f"behind {conn.server.api_prefix} at {conn.server.url}"
        raise WireError(
            f"there is no stream {stream} {place}: check the options stream and domain"
        ) from error
