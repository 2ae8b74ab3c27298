"""Defines `format("nats")` for Spark. Besides `readers`, no other source module imports Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hub_jobs.source.cluster import tasks_at_once
from hub_jobs.source.options import OptionError, parse_options
from hub_jobs.source.readers import NatsPushdownReader, NatsReader, NatsStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
"""The columns; Arrow's form is `rows.SCHEMA`."""


class NatsDataSource(DataSource):
    """Streams of a NATS JetStream server as a table, one row a record, in fixed ranges of sequences: for
    ``spark.read`` and ``spark.readStream``.

    A range that is read twice gives the same rows. A read that could not be whole fails: it never returns
    less than it was asked for without saying so. Register it with ``register(spark)``, which asks how many
    tasks run at once, or with ``spark.dataSource.register(NatsDataSource)``; it needs Spark 4.2 or newer, and
    Python 3.11 with pyarrow, nkeys and tenacity where it runs.

    Options
    -------
    servers : str
        ``nats://host:port``, or ``tls://``; several with commas, tried in their order. Required.
    stream : str
        The stream; several with commas. This or `streamPattern` is required.
    streamPattern : str
        A regular expression that the whole name of a stream must match. A streaming read finds streams that
        are made later. Needs the right to ask for all names.
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
    caFile : str, optional
        Path of the authorities to trust in TLS, on the driver and on every executor; default: the system's.
    tlsFirst : bool, default false
        Begin TLS before the server's first line, for servers with ``handshake_first``.
    inboxPrefix : str, default ``_INBOX_jobs``
        Below which subject answers come; the identity must be allowed to subscribe there.
    filterSubjects : str, optional
        Only records of these subjects, with commas; wildcards are NATS's.
    startingOffsets : str, default ``earliest``
        ``earliest``, ``latest`` or JSON by stream: ``{"TELEMETRY_0": 17}``. An offset is the sequence of the
        first record to read; -2 is earliest, -1 latest; ``{"seq": 17, "created": "..."}`` holds for that
        history of the stream only. A streaming read takes it for a new query only.
    startingTimestamp : str, optional
        Instead of `startingOffsets`: the first record that was stored at or after this time, RFC 3339 or
        milliseconds since 1970. The server's clock is taken not to have gone back.
    endingOffsets, endingTimestamp : str, default ``latest``
        The same for the end, batch only; the record at the offset, or at or after the time, is not read.
    minPartitions : int, optional
        At least so many partitions, when there are so many records. By default one for each task that runs at
        once, if that has 10,000 records; of a source that was not registered by ``register`` one for each
        core of the driver's machine.
    maxRecordsPerPartition : int, default 500000
        At most so many sequences in one partition.
    maxOffsetsPerTrigger : int, optional
        Streaming only: at most so many sequences a batch, shared among the streams by what each holds.
    failOnDataLoss : bool, default true
        Fail when records that were asked for are no longer in the stream; ``false`` reads what is there.
    includeHeaders : bool, default false
        Fill the column ``headers``; it is null otherwise.
    pushdown : bool, default false
        Batch only: filters on ``seq``, ``timestamp`` and ``subject`` narrow what the server is asked for.
        Needs ``spark.sql.python.filterPushdown.enabled``.
    """

    parallelism = os.cpu_count() or 1
    """Tasks that run at once, as far as known."""

    @classmethod
    def name(cls) -> str:
        """The name after ``format``."""
        return "nats"

    def schema(self) -> StructType:
        """Return the fixed columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raises OptionError for wrong options."""
        _check(schema)
        options = parse_options(dict(self.options))
        reader = NatsPushdownReader if options.pushdown else NatsReader
        return reader(options, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a streaming reader. Raises OptionError for wrong options."""
        _check(schema)
        return NatsStreamReader(parse_options(dict(self.options), streaming=True), self.parallelism)


def register(spark: SparkSession) -> None:
    """Register ``format("nats")`` in a session with its present number of parallel tasks."""

    class Registered(NatsDataSource):
        parallelism = tasks_at_once(spark)

    spark.dataSource.register(Registered)


def _check(schema: StructType) -> None:
    if schema != SCHEMA:
        names = ", ".join(SCHEMA.names)
        raise OptionError(f"the columns of nats are fixed; leave schema(...) out and select from: {names}")
