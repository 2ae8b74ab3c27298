"""A lake in a whole S3 server, written by two drivers at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hub_jobs
from agent.contract import Exit
from hub_jobs.tables import open_table
from hub_jobs.tables.places import ObjectPath
from tests.faults.report import Case
from tests.faults.slow.test_spark_cluster import BATCHES, READINGS, stored
from tests.harness.object_store import GATEWAY, SECRET, gateway
from tests.harness.servers import open_server_pair
from tests.spark.lakes import contents

_JOBS = Path(hub_jobs.__file__).parent
_SECONDS = 300.0


@pytest.mark.skipif(GATEWAY is None, reason="there is no versitygw on the path")
async def test_two_drivers_at_once_bring_everything_into_a_bucket_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    case.expected = "one commits, the other says that it was late; every reading is in the table once"
    lake = ObjectPath("s3://fleet/lake")
    async with open_server_pair(tmp_path, "edge-1") as servers:
        with gateway(tmp_path) as environment:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            await stored(await servers.leaf.connect("agent"), await servers.hub.connect("registrar"))
            hub = ["--server", servers.hub.url, "--seed-file", str(servers.hub.keys["jobs"])]

            both = await asyncio.gather(*(job("ingest", lake, *hub) for _ in range(2)))
            assert sorted(code for code, _ in both) in ([0, 0], [0, int(Exit.CONFLICT)]), both
            case.seen.append(f"the drivers' exit codes: {[code for code, _ in both]}")
            codes = [await job(name, lake) for name in ("refine", "maintain", "audit")]

            assert [code for code, _ in codes[:2]] == [Exit.WELL, Exit.WELL], codes
            assert "nothing is missing, nothing is doubled" in codes[2][1], codes
            assert not any(SECRET in said for _, said in [*both, *codes])
            assert contents_once(lake) == BATCHES
            rows = await asyncio.to_thread(contents, lake, "readings", "n", "index")
            case.sent = case.acknowledged = BATCHES * READINGS
            case.lost = BATCHES * READINGS - len(set(rows))
            case.duplicates = len(rows) - len(set(rows))
            assert (case.lost, case.duplicates) == (0, 0)


def contents_once(lake: ObjectPath) -> int:
    """How many messages are in bronze, each of them once."""
    assert open_table(lake, "bronze") is not None
    found = contents(lake, "bronze", "seq")
    assert len(found) == len(set(found))
    return len(found)


async def job(name: str, lake: ObjectPath, *arguments: str) -> tuple[int, str]:
    """Run a job as a process of its own; its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _JOBS / name / "__main__.py",
        "--lake",
        str(lake),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(_JOBS.parent)},
    )
    try:
        async with asyncio.timeout(_SECONDS):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()
