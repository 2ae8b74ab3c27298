"""The jobs and `format("nats")` on a server of Spark Connect, from processes that have no Java machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.contract import Exit
from agent.demo.ports import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.harness.standalone import Node
from tests.spark.lakes import contents
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600, method="thread")]
RECORDS = 20_000
READ = """
import sys
from pyspark.sql import SparkSession, functions as F
from hub_jobs.source.datasource import register
spark = SparkSession.builder.getOrCreate()
register(spark)
rows = spark.read.format("nats").option("servers", sys.argv[1]).option("stream", "S").load()
count, last = rows.agg(F.count("*"), F.max("seq")).first()
print(count, last, rows.select(F.spark_partition_id()).distinct().count())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connect(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """What a process needs in its environment to reach a server of two cores; no Java."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    node = Node(
        tmp_path_factory.mktemp("connect") / "server",
        "org.apache.spark.deploy.SparkSubmit",
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2,4]"),
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal",
        python=sys.executable,
    )
    try:
        await node.says(r"Spark Connect server started at: (\S+)")
        without_java = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
        yield {**os.environ, **without_java, "SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
    finally:
        node.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainServer]:
    """A server with a stream of so many records."""
    one = PlainServer(tmp_path_factory.mktemp("nats"))
    try:
        one.start()
        with Connection(Server(one.url)) as conn:
            make_stream(conn, "S")
        fill(one, "S.a", [b"1"] * RECORDS)
        yield one
    finally:
        one.stop()


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python process on Spark Connect."""
    program = [sys.executable, *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=500)


def test_the_source_reads_a_stream_in_as_many_parts_as_the_server_has_cores(
    connect: dict[str, str], server: PlainServer
) -> None:
    done = run(connect, "-c", READ, server.url)
    assert done.stdout.split() == [str(RECORDS), str(RECORDS), "2"], done.stderr


def test_ingest_and_refine_need_nothing_but_a_plan(
    connect: dict[str, str], server: PlainServer, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    options = ["--server", server.url, "--stream", "S", "--lake", str(lake), "--then", "refine"]
    done = run(connect, "-m", "hub_jobs.ingest", *options)

    assert done.returncode == Exit.WELL, done.stderr
    assert contents(lake, "bronze", "seq") == sorted(range(1, RECORDS + 1), key=str)
    assert contents(lake, "quarantine", "reason") == ["unknown source"] * RECORDS
    assert f"0 readings, {RECORDS} rows to quarantine" in done.stderr
