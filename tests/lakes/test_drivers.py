"""Two drivers at once on a lake at Azure and at Google, and a driver that is killed between its commits. Each
is a process of its own that does its tasks itself, so that no Java machine has to start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.tables import commits
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.places import ObjectPath
from tests.faults.slow.test_object_store import WELL
from tests.harness.cloud_stores import KEY, CloudStore
from tests.harness.store_faults import Fault
from tests.harness.wait import ended, until
from tests.lakes.test_jobs import check_each_is_there_once
from tests.spark.lakes import DRIVER

_SECONDS = 300.0
_ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)


async def test_of_two_drivers_at_once_each_version_is_of_one_and_nothing_is_lost_or_doubled(
    lake: ObjectPath, hub: list[str], cloud: CloudStore
) -> None:
    late = 0
    for name, options in (("ingest", hub), ("refine", [])):
        both = await asyncio.gather(*(job(name, lake, *options) for _ in range(2)))
        assert {code for code, _ in both} <= {Exit.WELL, Exit.CONFLICT}, both
        assert Exit.WELL in {code for code, _ in both}, both
        late += sum(code == Exit.CONFLICT for code, _ in both)
        assert not any(KEY in said for _, said in both)

    check_each_is_there_once(lake)
    await check_audit(lake, hub)
    for name in ("bronze", "readings"):
        table = open_table(lake, name)
        assert table is not None
        assert len(table.delta.history()) == table.delta.version() + 1


@pytest.mark.parametrize(
    ("table", "fault"),
    [("bronze", Fault.HELD), ("quarantine", Fault.SILENT), ("readings", Fault.HELD)],
    ids=["ingest at its commit", "refine after its first commit", "refine at its second commit"],
)
async def test_of_a_driver_that_is_killed_between_its_writes_nothing_is_lost_or_doubled(
    lake: ObjectPath, hub: list[str], cloud: CloudStore, table: str, fault: Fault
) -> None:
    """Another driver does its work. A commit of the killed one that was under way reaches the store when the
    other has committed."""
    name, options = ("ingest", hub) if table == "bronze" else ("refine", [])
    if name == "refine":
        assert (await job("ingest", lake, *hub))[0] == Exit.WELL
    cloud.faults.seen()
    cloud.faults.strike(rf"{table}/_delta_log/0*[1-9]\d*\.json$", fault)
    killed = await start(name, lake, *options)
    await until(lambda: bool(cloud.faults.seen().struck), "the driver commits", _SECONDS)
    killed.kill()
    assert await killed.wait() == -signal.SIGKILL
    code, said = await job(name, lake, *options)
    assert code == Exit.WELL, said
    committed = log(lake, table)
    cloud.faults.release()

    assert log(lake, table) == committed, "the late put is not in the place of another"
    if name == "ingest":
        assert (await job("refine", lake))[0] == Exit.WELL
    check_each_is_there_once(lake)
    await check_audit(lake, hub)


def log(lake: ObjectPath, name: str) -> list[object]:
    """What each version of a table says."""
    table = open_table(lake, name)
    assert table is not None
    return [commits.entries(table.path, version) for version in range(table.delta.version() + 1)]


async def check_audit(lake: ObjectPath, hub: list[str]) -> None:
    """The audit finds nothing missing and nothing doubled."""
    code, said = await job("audit", lake, *hub)
    assert (code, WELL in said) == (Exit.WELL, True), said


async def job(name: str, lake: ObjectPath, *options: str) -> tuple[int, str]:
    """Run a job; its exit code and what it said."""
    process = await start(name, lake, *options)
    return await ended(process, _SECONDS)


async def start(name: str, lake: ObjectPath, *options: str) -> asyncio.subprocess.Process:
    """Start a job as a process."""
    program = f"{DRIVER}from hub_jobs.{name} import run\nsys.exit(run.main(sys.argv[1:]))"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "--lake", str(lake), *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
