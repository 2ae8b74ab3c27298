"""The jobs and `format("nats")` on a server of Spark Connect, from processes that have no Java machine."""

from __future__ import annotations

import asyncio
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
from agent.demo.loopback import free_port
from hub_jobs.refine import run as refine
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import files
from hub_jobs.tables.schemas import SCHEMAS
from tests.harness.standalone import ConnectServer
from tests.harness.wait import until
from tests.spark.connect_client import Client
from tests.spark.every_job import run_all
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import LEDGER, LINE, batch_row, direct_row, ledger_row, numbered
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600, method="thread")]
RECORDS = 20_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connect(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConnectServer]:
    """A server that runs."""
    one = ConnectServer(tmp_path_factory.mktemp("connect"))
    try:
        await one.start()
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="module")
def client(connect: ConnectServer) -> Iterator[Client]:
    """A process on that server."""
    one = Client(connect.environment)
    yield one
    one.close()


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


def test_the_source_reads_a_stream_in_as_many_parts_as_the_server_has_cores(
    client: Client, server: PlainServer
) -> None:
    done = client.call("read", server.url)
    assert done.result == [RECORDS, RECORDS, 2], done.said


def test_ingest_and_refine_need_nothing_but_a_plan(
    client: Client, server: PlainServer, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    options = ["--server", server.url, "--stream", "S", "--lake", lake, "--then", "refine"]
    done = client.call("job", "ingest", *options)

    assert done.result == Exit.WELL, done.said
    assert contents(lake, "bronze", "seq") == sorted(range(1, RECORDS + 1), key=str)
    assert contents(lake, "quarantine", "reason") == ["unknown source"] * RECORDS
    assert f"0 readings, {RECORDS} rows to quarantine" in done.said


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
    client: Client, damaged: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "connected"
    shutil.copytree(damaged, lake)
    done = client.call("every_job", lake)
    assert done.result, done.said
    shown = json.loads(json.dumps(done.result).replace(str(lake), str(damaged)))

    assert shown == [list(job) for job in run_all(damaged)]
    name, code, out, *_ = shown[0]
    assert (name, code) == ("audit", Exit.LOSS)
    assert "1 readings missing, 0 doubled" in out
    assert "contents that are not those of their payloads" in out
    for table in SCHEMAS:
        columns = [name for name in SCHEMAS[table].names if name != "at"]
        assert contents(lake, table, *columns) == contents(damaged, table, *columns), table


def test_large_pieces_and_results_arrive_whole(client: Client) -> None:
    done = client.call("large")
    assert done.result is True, done.said


def test_a_server_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    nowhere = {**os.environ, "SPARK_REMOTE": f"sc://127.0.0.1:{free_port()}/;token=planted-secret"}
    add_bronze(tmp_path / "lake", numbered(1))
    program = [sys.executable, "-m", "hub_jobs.refine", "--lake", str(tmp_path / "lake")]
    done = subprocess.run(program, env=nowhere, capture_output=True, text=True, timeout=500)
    assert done.returncode == Exit.UNREACHABLE
    assert done.stderr.startswith("refine: no Spark Connect server answers at sc://127.0.0.1:")
    assert "planted-secret" not in done.stderr


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_whose_server_is_killed_says_so_soon(
    connect: ConnectServer, client: Client, tmp_path: Path
) -> None:
    """The last test: the server is gone. How long the job asks it and that the next run uses another one is
    in tests/faults/slow."""
    begun = tmp_path / "begun"
    job = asyncio.create_task(asyncio.to_thread(client.call, "stuck", begun, 3))
    await until(lambda: begun.exists() or job.done(), "the task runs", 60)
    connect.kill()
    done = await asyncio.wait_for(job, 30)
    assert done.result == Exit.UNREACHABLE, done.said
    assert f"stuck: the Spark Connect server at {connect.address} ended while the job ran" in done.said
