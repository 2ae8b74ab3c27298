"""A server of Spark Connect that is killed under a job, and started again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.spark.connect_tasks import RETRIES
from tests.harness.standalone import ConnectServer
from tests.harness.wait import until
from tests.spark.connect_client import Client

_BOUND_SECONDS = 60.0
_START_SECONDS = 300.0
"""For a session and its first task on a busy machine."""


@pytest.mark.timeout(600)
async def test_a_job_ends_within_a_minute_and_the_next_run_uses_the_server_that_was_started_again(
    tmp_path: Path,
) -> None:
    server, begun = ConnectServer(tmp_path), tmp_path / "begun"
    await server.start()
    client = Client(server.environment)
    try:
        job = asyncio.create_task(asyncio.to_thread(client.call, "stuck", begun, RETRIES["max_retries"]))
        await until(lambda: begun.exists() or job.done(), "the task runs", _START_SECONDS)
        killed = time.monotonic()
        server.kill()
        done = await job
        assert time.monotonic() - killed < _BOUND_SECONDS
        assert done.result == Exit.UNREACHABLE, done.said
        assert f"the Spark Connect server at {server.address} ended while the job ran" in done.said

        await server.start()
        done = await asyncio.to_thread(client.call, "large")
        assert done.result is True, done.said
        client.close()
    finally:
        client.kill()
        server.kill()
