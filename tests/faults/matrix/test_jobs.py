"""The driver of a Spark job is killed in the midst of its work, or stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.contract import Exit
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import in_table, judged
from tests.faults.matrix.test_stores import copied, replaced
from tests.faults.report import Case
from tests.faults.world.machine import is_stopped
from tests.harness.wait import wait_for
from tests.spark.lakes import killed, orphans

_DRIVER = """
import os, signal
from hub_jobs.{job}.run import main
from hub_jobs.tables.delta import Table
commit = Table.commit
def die(table, *args, **options):
    if table.name == {table!r} and not {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(table, *args, **options)
    if table.name == {table!r}:
        os.kill(os.getpid(), signal.SIGKILL)
Table.commit = die
main({options!r})
"""
_STANDING_STILL = """
import os, signal
from hub_jobs.ingest.run import main
from hub_jobs.tables.delta import Table
commit = Table.commit
def stop(table, *args, **options):
    Table.commit = commit
    os.kill(os.getpid(), signal.SIGSTOP)
    commit(table, *args, **options)
Table.commit = stop
raise SystemExit(main({options!r}))
"""
_DRIVER_SECONDS = 300.0
PLACES = {
    "ingest before its commit": ("ingest", "bronze", False),
    "ingest after its commit": ("ingest", "bronze", True),
    "refine before its first commit": ("refine", "quarantine", False),
    "refine between its commits": ("refine", "readings", False),
    "refine after its commits": ("refine", "readings", True),
}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.replace(" ", "_"))
def test_the_driver_is_killed_in(world_of: Worlds, case: Case, tmp_path: Path, place: str) -> None:
    case.expected = "the next run goes on from the last commit: nothing lost, nothing doubled"
    job, table, after = PLACES[place]
    with world_of(direct=False) as w:
        w.tables.ingest()
        w.tables.refine()
        w.load.flows(5)
        w.mended()
        if job == "refine":
            w.tables.ingest()
        lake = ["--lake", str(w.tables.lake)]
        options = [*w.tables.server, *lake] if job == "ingest" else lake
        program = _DRIVER.format(job=job, table=table, after=after, options=options)
        w.injected.add(f"the driver is killed in {place}", lambda _since: "it ended by signal 9")
        killed(tmp_path / "driver.py", program, 600)
        left = orphans(w.tables.lake, "readings" if job == "refine" else "bronze")
        w.case.saw(f"{left} files that no commit names")
        w.verdict()


def test_a_driver_stands_still_before_its_commit_while_the_store_of_the_hub_is_restored(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = "another driver ingests what is restored; what the first adds afterwards is there once"
    with world_of() as w:
        w.load.flows(20)
        copied(w, w.hub, tmp_path / "copy")
        w.load.flows(20)
        in_table(w)
        w.load.flows(20)
        w.mended()
        options = [*w.tables.server, "--lake", str(w.tables.lake)]
        command = [sys.executable, "-c", _STANDING_STILL.format(options=options)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        with subprocess.Popen(command, env=environment) as driver:
            wait_for(lambda: is_stopped(driver.pid), "the driver stands still", _DRIVER_SECONDS)
            case.saw("a driver stands still before its commit")
            replaced(w, w.hub, tmp_path / "copy")
            w.noticed()
            in_table(w)
            os.kill(driver.pid, signal.SIGCONT)
            assert driver.wait(_DRIVER_SECONDS) in (Exit.WELL, Exit.CONFLICT)
            case.saw(f"the driver goes on and ends with {driver.returncode}")
        judged(w)
