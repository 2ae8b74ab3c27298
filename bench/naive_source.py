"""The alternative to the reader of `format("nats")`: the same data source with nats-py's pull consumer in its
tasks, as one would write it from the documents, a message at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

import nats
import pyarrow as pa
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from hub_jobs.source.datasource import NatsDataSource
from hub_jobs.source.options import parse_options
from hub_jobs.source.plan import Range
from hub_jobs.source.readers import NatsReader, RangePartition
from hub_jobs.source.rows import SCHEMA

_FETCHED: Final = 500
_NOTHING: Final = dict.fromkeys(SCHEMA.names)


class NaiveDataSource(NatsDataSource):
    """`format("naive")`."""

    @classmethod
    def name(cls) -> str:
        """The name after `format`."""
        return "naive"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the same ranges."""
        return NaiveReader(parse_options(dict(self.options)))


class NaiveReader(NatsReader):
    """Plans as the other does, and reads in its own way."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
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
