"""`readStream.format("nats")`: what a query has read, over limits, crashes and restarts of the server."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.harness.wait import wait_for
from tests.spark.lakes import JOB_SECONDS
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

Batch = tuple[int, Counter[tuple[str, int]]]


@pytest.fixture(scope="module")
def nats(spark: SparkSession) -> SparkSession:
    """The session with the source registered."""
    from hub_jobs.source.datasource import NatsDataSource

    spark.dataSource.register(NatsDataSource)
    return spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PlainServer]:
    """A server with a stream T_0 of 1,000 records."""
    one = PlainServer(tmp_path / "server")
    try:
        one.start()
        with Connection(Server(one.url)) as conn:
            make_stream(conn, "T_0")
        fill(one, "T_0.a", [b"%d" % number for number in range(1, 1001)])
        yield one
    finally:
        one.stop()


class Reading:
    """Queries over one checkpoint. A sink that keeps each batch by its id, as a table with an offset does."""

    def __init__(self, nats: SparkSession, server: PlainServer, checkpoint: Path, **options: object) -> None:
        self._nats = nats
        self._options = {"servers": server.url, **{name: str(value) for name, value in options.items()}}
        self.checkpoint = checkpoint
        self.batches: list[Batch] = []

    def start(self, *, available: bool) -> StreamingQuery:
        frame = self._nats.readStream.format("nats").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if available else writer).start()

    def all_that_is_there(self) -> list[Batch]:
        """Run until all that is there now was read; the batches of this run."""
        from pyspark.errors import StreamingQueryException

        before = len(self.batches)
        while True:
            query = self.start(available=True)
            try:
                assert query.awaitTermination(JOB_SECONDS)
            except StreamingQueryException as error:
                # Spark gives the source's process ten seconds to start; nothing is read by then.
                if "Python worker failed to connect back" not in str(error):
                    raise
            else:
                return self.batches[before:]

    def failure(self) -> str:
        with pytest.raises(Exception) as caught:
            self.all_that_is_there()
        return str(caught.value)

    def records(self) -> Counter[tuple[str, int]]:
        return sum((held for _, held in self.batches), Counter())

    def _keep(self, frame: DataFrame, number: int) -> None:
        rows = frame.select("stream", "seq", "value").collect()
        assert all(row.stream != "T_0" or row.value == b"%d" % row.seq for row in rows)
        self.batches.append((number, Counter((row.stream, row.seq) for row in rows)))


def test_a_query_reads_all_once_in_batches_of_bounded_size_and_goes_on_where_it_ended(
    nats: SparkSession, server: PlainServer, tmp_path: Path
) -> None:
    reading = Reading(
        nats, server, tmp_path / "checkpoint", streamPattern="T_[0-9]+", maxOffsetsPerTrigger=400
    )
    assert [sum(held.values()) for _, held in reading.all_that_is_there()] == [400, 400, 200]
    with Connection(Server(server.url)) as conn:
        make_stream(conn, "T_1")
        make_stream(conn, "OTHER")
    fill(server, "T_0.a", [b"%d" % number for number in range(1001, 1101)])
    fill(server, "T_1.a", [b"x"] * 50)
    fill(server, "OTHER.a", [b"x"])
    again = reading.all_that_is_there()
    assert sum((held for _, held in again), Counter()) == Counter(
        [("T_0", seq) for seq in range(1001, 1101)] + [("T_1", seq) for seq in range(1, 51)]
    ), "a stream that was made since is read from its beginning"
    before = len(reading.batches)

    # What a driver leaves that dies after the sink has the batch and before Spark has noted it.
    last = max(int(path.name) for path in (reading.checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (reading.checkpoint / "commits" / name).unlink()
    repeated = [one for one in reading.all_that_is_there() if one[1]]
    assert repeated == [batch for batch in reading.batches[:before] if batch[0] == last], (
        "the batch is the same"
    )


def test_a_query_outlives_a_restart_of_the_server(
    nats: SparkSession, server: PlainServer, tmp_path: Path
) -> None:
    reading = Reading(nats, server, tmp_path / "checkpoint", stream="T_0", startingOffsets='{"T_0": 901}')
    query = reading.start(available=False)
    try:
        wait_for(lambda: len(reading.records()) == 100, "what is there is read", JOB_SECONDS)
        server.signal(signal.SIGKILL)
        server.start()
        fill(server, "T_0.a", [b"%d" % number for number in range(1001, 1201)])
        wait_for(
            lambda: len(reading.records()) == 300 or not query.isActive,
            "what came since is read",
            JOB_SECONDS,
        )
        assert query.exception() is None
        wait_for(lambda: "1201" in str(query.lastProgress), "the progress says how far it is", JOB_SECONDS)
    finally:
        query.stop()
    assert reading.records() == Counter(("T_0", seq) for seq in range(901, 1201))


def test_records_that_are_gone_fail_a_query_unless_that_is_allowed(
    nats: SparkSession, server: PlainServer, tmp_path: Path
) -> None:
    reading = Reading(nats, server, tmp_path / "checkpoint", stream="T_0", startingOffsets="latest")
    assert not any(held for _, held in reading.all_that_is_there())
    fill(server, "T_0.a", [b"%d" % number for number in range(1001, 1101)])
    with Connection(Server(server.url)) as conn:
        conn.api("STREAM.PURGE.T_0", {"seq": 1041})
    assert "begins at 1041, and 1001 was to be read next: 40 records" in reading.failure()
    copy = tmp_path / "copy"
    shutil.copytree(reading.checkpoint, copy)
    tolerant = Reading(nats, server, copy, stream="T_0", failOnDataLoss=False)
    tolerant.all_that_is_there()
    assert tolerant.records() == Counter(("T_0", seq) for seq in range(1041, 1101))

    with Connection(Server(server.url)) as conn:
        conn.api("STREAM.DELETE.T_0")
        make_stream(conn, "T_0")
    fill(server, "T_0.a", [b"%d" % number for number in range(1, 11)])
    assert "recreated" in reading.failure()
    found = [held for _, held in tolerant.all_that_is_there()]
    assert sum(found, Counter()) == Counter(("T_0", seq) for seq in range(1, 11))


def test_times_and_filters_bound_a_batch_read(nats: SparkSession, server: PlainServer) -> None:
    between = time.time_ns()
    fill(server, "T_0.b", [b"%d" % number for number in range(1001, 1101)])

    def read(**options: object) -> DataFrame:
        given = {
            "servers": server.url,
            "stream": "T_0",
            **{name: str(value) for name, value in options.items()},
        }
        return nats.read.format("nats").options(**given).load()

    assert read(startingTimestamp=between // 1_000_000 + 1).count() <= 100
    late = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(between // 10**9))}.{between % 10**9:09d}Z"
    assert {row.seq for row in read(startingTimestamp=late).select("seq").collect()} == set(range(1001, 1101))
    assert read(endingTimestamp=late).count() == 1000
    nats.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(pushdown=True, minPartitions=2).where("seq > 990 and seq <= 1010 and subject = 'T_0.b'")
        assert {row.seq for row in frame.select("seq").collect()} == set(range(1001, 1011))
        assert read(pushdown=True).where("seq = 5").rdd.getNumPartitions() == 1
        newer = read(pushdown=True).where(f"timestamp >= timestamp_micros({between // 1000 + 1})")
        assert newer.count() == 100
    finally:
        nats.conf.unset("spark.sql.python.filterPushdown.enabled")
