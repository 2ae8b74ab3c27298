"""A million messages of 200 bytes from a stream into Spark, thrown away there: the data source beside its own
reader without Spark, and beside nats-py's pull consumer in the same data source. Server, driver and tasks
share this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from statistics import median
from typing import Any, Final

import nats
import pyarrow as pa
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.hub_stream import Message, fill, hub
from bench.result import Against, Result, Row
from hub_jobs.source.connection import Connection
from hub_jobs.source.datasource import NatsDataSource
from hub_jobs.source.options import parse_options
from hub_jobs.source.plan import Range
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.readers import NatsReader, RangePartition
from hub_jobs.source.rows import SCHEMA
from hub_jobs.source.server import Server
from hub_jobs.spark.session import session

_MESSAGES: Final = 1_000_000
_FEW: Final = 100_000
"""For the alternative, which is slow; both are rates."""
_BYTES: Final = 200
_STREAM: Final = "TELEMETRY_0"
_REPEATS: Final = 3
_GOAL: Final = 5.0
_PARTITIONS: Final = 4


def run() -> Result:
    with hub() as one:
        url = one.url
        fill(one, _STREAM, _messages())
        alone = median(_rate(lambda: _alone(url), _MESSAGES) for _ in range(_REPEATS))
        began = time.monotonic()
        spark = session("bench")
        for source in (NatsDataSource, NaiveDataSource):
            spark.dataSource.register(source)
        _read(spark, "nats", url, _MESSAGES)
        cold = _MESSAGES / (time.monotonic() - began)
        ours = median(_rate(lambda: _read(spark, "nats", url, _MESSAGES), _MESSAGES) for _ in range(_REPEATS))
        _read(spark, "naive", url, _FEW)
        naive = median(_rate(lambda: _read(spark, "naive", url, _FEW), _FEW) for _ in range(_REPEATS))
        spark.stop()
    against = Against(f"nats-py's pull consumer in the same data source, {_FEW:,} messages", naive)
    return Result(
        "spark-read",
        [
            Row("messages into Spark, warm", ours, "messages/s", _GOAL, against),
            Row("messages into Spark, with the start of its session", cold, "messages/s"),
            Row("the reader alone, one connection", alone, "messages/s"),
        ],
    )


def _messages() -> Iterator[Message]:
    for number in range(_MESSAGES):
        yield f"tel.edge-1.normal.p{number % 500}", {}, b"%d" % number + b"x" * (_BYTES - len(str(number)))


def _rate(read: Callable[[], None], count: int) -> float:
    began = time.monotonic()
    read()
    return count / (time.monotonic() - began)


def _alone(url: str) -> None:
    with Connection(Server(url)) as conn:
        count = sum(len(one.seqs) for one in read_columns(conn, _STREAM, 1, _MESSAGES))
    if count != _MESSAGES:
        raise RuntimeError(f"{count} of {_MESSAGES} messages were read")


def _read(spark: SparkSession, source: str, url: str, count: int) -> None:
    reader = spark.read.format(source).option("servers", url).option("stream", _STREAM)
    reader = reader.option("endingOffsets", f'{{"{_STREAM}": {count + 1}}}').option(
        "minPartitions", _PARTITIONS
    )
    reader.load().write.format("noop").mode("overwrite").save()


_FETCHED: Final = 500
_NOTHING: Final = dict.fromkeys(SCHEMA.names)


class NaiveDataSource(NatsDataSource):
    """`format("naive")`: the alternative, with nats-py's pull consumer in its tasks, as its documents show
    it, a message at a time."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the same ranges."""
        return NaiveReader(parse_options(dict(self.options)))


class NaiveReader(NatsReader):
    """Plans as the other does, and reads in its own way."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        url = self._options.server.url
        with asyncio.Runner() as runner:
            nc, consumer = runner.run(_open(url, partition.range))
            left = partition.range.size
            while left > 0:
                rows = runner.run(_fetch(consumer, partition.range.stream, min(_FETCHED, left)))
                left -= len(rows)
                yield pa.RecordBatch.from_pylist(rows, SCHEMA)
            runner.run(nc.close())


async def _open(url: str, wanted: Range) -> tuple[Client, Any]:
    nc = await nats.connect(url)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=wanted.first,
        ack_policy=AckPolicy.NONE,
    )
    return nc, await nc.jetstream().pull_subscribe("", stream=wanted.stream, config=config)


async def _fetch(consumer: Any, stream: str, count: int) -> list[dict[str, Any]]:
    return [
        _NOTHING
        | {
            "subject": one.subject,
            "value": one.data,
            "stream": stream,
            "seq": one.metadata.sequence.stream,
            "timestamp": one.metadata.timestamp.astimezone(UTC),
        }
        for one in await consumer.fetch(count, timeout=10)
    ]
