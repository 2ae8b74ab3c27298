"""The jobs and `format("nats")` on a server of Spark Connect, from processes that have no Java machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio

from agent.contract import Exit
from agent.demo.ports import free_port
from hub_jobs.refine import run as refine
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import files
from hub_jobs.tables.schemas import SCHEMAS
from tests.harness.standalone import Node
from tests.spark.every_job import run_all
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import LEDGER, LINE, batch_row, direct_row, ledger_row, numbered
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
LARGE = """
import os
from hub_jobs.session import run_tasks, session
def twice(piece): return piece, piece
pieces = [os.urandom(3 << 20), b"small", os.urandom(3 << 20)]
print(run_tasks(session("test"), twice, pieces) == [twice(piece) for piece in pieces])
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
        "spark.sql.shuffle.partitions": "2",
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


@pytest.fixture
def damaged(tmp_path: Path, spark: object) -> Path:
    """A lake that is not refined to its end: a reading is gone, and another has another value."""
    lake = tmp_path / "damaged"
    line = b'{"ts":17950000%02d,"device":"pump","metric":"energy_total","value":1}\n'
    lines = b"".join(line % at for at in range(10))
    add_bronze(lake, [*numbered(1, 2, text=lines), batch_row(LINE * 9 + b"bad\n", n=3, source_seq=3)])
    add_bronze(lake, [direct_row(b"21.5", source_seq=4), ledger_row(LEDGER, source_seq=5)], files=2)
    assert refine.main(["--lake", str(lake)]) == Exit.WELL
    table = ensure_table(lake, "readings")
    paths = files(table)["path"].to_pylist()

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index("value")
        return rows.set_column(at, "value", pa.array([*range(rows.num_rows)], pa.float64())).slice(1)

    table.rewrite(rewrite(lake, table, paths, changed), paths, changed=True)
    add_bronze(lake, numbered(4, text=lines))
    return lake


@pytest.mark.usefixtures("spark")
def test_every_job_says_and_writes_what_it_does_without_spark_connect(
    connect: dict[str, str], damaged: Path, tmp_path: Path
) -> None:
    lake, result = tmp_path / "connected", tmp_path / "result"
    shutil.copytree(damaged, lake)
    done = run(connect, "-m", "tests.spark.every_job", str(lake), str(result))
    assert done.returncode == 0, done.stderr
    shown = json.loads(result.read_text().replace(str(lake), str(damaged)))

    assert shown == [list(job) for job in run_all(damaged)]
    name, code, out, *_ = shown[0]
    assert (name, code) == ("audit", Exit.LOSS)
    assert "1 readings missing, 0 doubled" in out
    assert "contents that are not those of their payloads" in out
    for table in SCHEMAS:
        columns = [name for name in SCHEMAS[table].names if name != "at"]
        assert contents(lake, table, *columns) == contents(damaged, table, *columns), table


def test_large_pieces_and_results_arrive_whole(connect: dict[str, str]) -> None:
    done = run(connect, "-c", LARGE)
    assert done.stdout == "True\n", done.stderr


def test_a_server_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    nowhere = {**os.environ, "SPARK_REMOTE": f"sc://127.0.0.1:{free_port()}/;token=planted-secret"}
    add_bronze(tmp_path / "lake", numbered(1))
    done = run(nowhere, "-m", "hub_jobs.refine", "--lake", str(tmp_path / "lake"))
    assert done.returncode == Exit.UNREACHABLE
    assert done.stderr.startswith("refine: no Spark Connect server answers at sc://127.0.0.1:")
    assert "planted-secret" not in done.stderr
