from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE, make_aggregate, make_leaf_stream
from tests.harness.wait import WAIT_SECONDS
from tests.security.hidden import leaked
from tests.spark.kept import events, plans
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def nats(spark: SparkSession) -> SparkSession:
    """The session with the source registered."""
    from hub_jobs.source.datasource import NatsDataSource

    spark.dataSource.register(NatsDataSource)
    return spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainServer]:
    """A server with a stream S of 1,000 records, of which three are deleted."""
    one = PlainServer(tmp_path_factory.mktemp("server"))
    try:
        one.start()
        with Connection(Server(one.url)) as conn:
            make_stream(conn, "S")
            fill(one, "S.a", [b"%d" % number for number in range(1, 901)])
            fill(one, "S.b", [b"\x00\xff"] * 100, {"Nats-Msg-Id": "", "Kind": "raw"})
            for seq in (7, 500, 501):
                conn.api("STREAM.MSG.DELETE.S", {"seq": seq})
        yield one
    finally:
        one.stop()


def read(nats: SparkSession, url: str, **options: object) -> DataFrame:
    given = {"servers": url, "stream": "S", **{name: str(value) for name, value in options.items()}}
    return nats.read.format("nats").options(**given).load()


def failure(frame: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        frame.count()
    return str(caught.value)


def test_a_stream_is_read_whole_in_partitions(nats: SparkSession, server: PlainServer) -> None:
    frame = read(nats, server.url, minPartitions=4, includeHeaders=True)
    rows = {row.seq: row for row in frame.collect()}
    assert sorted(rows) == [seq for seq in range(1, 1001) if seq not in (7, 500, 501)]
    assert frame.rdd.getNumPartitions() == 4
    assert (rows[42].subject, rows[42].value, rows[42].stream) == ("S.a", b"42", "S")
    assert rows[42].source_stream is None
    assert rows[1000].value == b"\x00\xff"
    assert [(pair.key, pair.value) for pair in rows[1000].headers] == [("Nats-Msg-Id", b""), ("Kind", b"raw")]
    assert rows[1].timestamp <= rows[1000].timestamp


def test_offsets_subjects_and_sizes_limit_what_is_read(nats: SparkSession, server: PlainServer) -> None:
    part = read(
        nats, server.url, startingOffsets='{"S": 890}', endingOffsets='{"S": 911}', filterSubjects="S.a"
    )
    assert [row.seq for row in part.select("seq").orderBy("seq").collect()] == list(range(890, 901))
    assert read(nats, server.url, startingOffsets="latest").count() == 0
    sized = read(nats, server.url, maxRecordsPerPartition=300)
    assert (sized.rdd.getNumPartitions(), sized.count()) == (4, 997)


def test_a_task_that_is_tried_again_gives_the_same_rows(
    nats: SparkSession, server: PlainServer, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed-once")

    def fail_once(batches: Iterator[object]) -> Iterator[object]:
        for batch in batches:
            yield batch
            if not Path(marker).exists():
                Path(marker).touch()
                raise RuntimeError("the first attempt dies")

    frame = read(nats, server.url, minPartitions=2).select("seq", "value")
    before = {(row.seq, bytes(row.value)) for row in frame.collect()}
    again = frame.mapInArrow(fail_once, frame.schema).collect()
    assert Path(marker).exists()
    assert len(again) == 997
    assert {(row.seq, bytes(row.value)) for row in again} == before


def test_what_is_wrong_is_said_in_words(nats: SparkSession, server: PlainServer) -> None:
    def said(**options: object) -> str:
        return failure(read(nats, server.url, **options))

    assert "there is no stream NONE" in said(stream="NONE")
    assert "nothing answers $JS.far.API.STREAM.INFO.S" in said(domain="far")
    assert "did you mean startingOffsets?" in failure_on_load(nats, server, startingOffset="earliest")
    assert "Put the secret into a file" in failure_on_load(nats, server, password="hunter2")
    with_schema = nats.read.format("nats").schema("a int").options(servers=server.url, stream="S")
    assert "columns of nats are fixed" in failure(with_schema.load())
    assert "no server can be reached" in failure(read(nats, "nats://127.0.0.1:1"))
    made = json.dumps({"S": {"seq": 5, "created": "2025-01-01T00:00:00Z"}})
    assert "recreated" in said(startingOffsets=made)
    assert "ends before 1001" in said(endingOffsets='{"S": 2000}')


def failure_on_load(nats: SparkSession, server: PlainServer, **options: str) -> str:
    """An option is refused at the latest when the plan is made."""
    with pytest.raises(Exception) as caught:
        read(nats, server.url, **options).count()
    return str(caught.value)


async def test_a_sourced_record_says_where_it_came_from_read_as_the_jobs_identity(
    nats: SparkSession, two_leaves: ServerPair
) -> None:
    hub = two_leaves.hub
    epochs = {domain: f"epoch{number}" for number, domain in enumerate(two_leaves.leaves)}
    for domain, leaf in two_leaves.leaves.items():
        await make_leaf_stream(await leaf.connect("agent"), domain, epochs[domain])
    await make_aggregate(await hub.connect("registrar"), epochs)
    for domain, leaf in two_leaves.leaves.items():
        device = await leaf.connect("device")
        for number in range(3):
            headers = {"Nats-Msg-Id": f"{domain}-{number}"}
            await device.jetstream().publish(f"tel.{domain}.normal.pump.heat", b"21.5", headers=headers)
    identity = Server(hub.url, seed_file=str(hub.keys["jobs"]))

    def held() -> int:
        with Connection(identity) as conn:
            return stream_info(conn, AGGREGATE).messages

    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while await asyncio.to_thread(held) < 6:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    frame = read(nats, hub.url, stream=AGGREGATE, seedFile=hub.keys["jobs"])
    rows = await asyncio.to_thread(frame.collect)
    found = {
        (row.source_domain, row.source_stream, row.source_seq, row.source_subject, row.msg_id, row.subject)
        for row in rows
    }
    assert found == {
        (
            domain,
            f"TEL_{domain}_normal",
            number + 1,
            f"tel.{domain}.normal.pump.heat",
            f"{domain}-{number}",
            f"tel.{domain}.normal.pump.heat",
        )
        for domain in epochs
        for number in range(3)
    }
    assert all(re.fullmatch(r"[0-9A-Za-z]{8}", row.source_ident) for row in rows)
    denied = read(nats, hub.url, stream="COMMANDS", seedFile=hub.keys["jobs"])
    refusal = await asyncio.to_thread(failure, denied)
    assert "Permissions Violation" in refusal
    kept = {"plan": plans(frame), "error": refusal.encode(), **events(nats)}
    assert b"BatchScan nats" in kept["plan"]
    assert leaked(kept, {"seed": hub.keys["jobs"].read_text().strip()}) == []
