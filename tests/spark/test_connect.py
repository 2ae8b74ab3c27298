"""Jobs and `format("nats")` on a server of Spark Connect, from processes that have no Java machine; every
job is in tests/connect."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import Exit
from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.harness.standalone import ConnectServer
from tests.harness.wait import until
from tests.spark.connect_client import Client
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import numbered
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600, method="thread")]
RECORDS = 20_000


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
    await until(lambda: begun.exists() or job.done(), "the task runs", 300)
    connect.kill()
    done = await asyncio.wait_for(job, 120)
    assert done.result == Exit.UNREACHABLE, done.said
    assert f"stuck: the Spark Connect server at {connect.address} ended while the job ran" in done.said
