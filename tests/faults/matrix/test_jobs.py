"""The driver of a Spark job is killed in the midst of its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.matrix.conftest import Worlds
from tests.faults.report import Case
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
