"""Every job on a lake at Azure and at Google, with the credential in the environment alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.gaps import run as gaps
from hub_jobs.ingest import run as ingest
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.places import ObjectPath
from hub_jobs.tables.scan import read
from hub_jobs.where import ScanPart, Waiting, look, open_lake
from tests.faults.slow.test_object_store import WELL
from tests.harness.cloud_stores import KEY
from tests.lakes.conftest import BATCHES, READINGS
from tests.security.hidden import files_below, leaked
from tests.spark.kept import events
from tests.spark.lakes import contents

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_every_job_does_its_work_and_shows_no_secret(
    lake: ObjectPath,
    hub: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    spark = request.getfixturevalue("spark")  # only now: its workers have the environment that it begins in
    here = ["--lake", str(lake)]

    assert ingest.main([*here, *hub]) is Exit.WELL
    assert refine.main(here) is Exit.WELL
    assert rollup.main(here) is Exit.WELL
    assert gaps.main(here) is Exit.WELL
    assert maintain.main(here) is Exit.WELL
    assert replay.main([*here, "--stream", "TELEMETRY_0", "--from-seq", "1"]) is Exit.WELL
    assert rollup.main(here) is Exit.WELL
    pages = tmp_path / "pages"
    pages.mkdir()
    for way in ([], ["--deep"]):
        reports = ["--json", str(pages / "audit.json"), "--html", str(pages / "audit.html")]
        assert audit.main([*here, *hub, *way, *reports]) is Exit.WELL
    out = str(pages / "proof.html")
    done = CliRunner().invoke(app, ["proof", "edge-1", *here, "--out", out])
    assert done.exit_code == Exit.WELL, done.output
    look(open_lake(lake), ScanPart("edge-1"), Waiting())

    check_each_is_there_once(lake)
    assert sum(contents(lake, "rollup_1m", "count")) == BATCHES * READINGS
    assert read(spark, str(lake / "readings"), [("n", "<=", 2)]).count() == 2 * READINGS
    printed = capfd.readouterr()
    assert printed.out.count(WELL) + printed.err.count(WELL) >= 2
    kept = {"said": printed.out.encode(), "logged": printed.err.encode(), "proof": done.output.encode()}
    kept |= files_below(pages) | events(spark) | processes()
    assert leaked(kept, {"key": KEY}) == []
    assert any("java" in name for name in kept), "the search has seen the list of processes"


def processes() -> dict[str, bytes]:
    """What the list of processes shows of this one and of those that it started."""
    own = psutil.Process()
    found = {}
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            line = process.cmdline()
            found[f"process {process.pid} {line[:1]}"] = " ".join(line).encode()
    return found


def check_each_is_there_once(lake: ObjectPath) -> None:
    """Every message is in bronze, and every reading in the table, once."""
    assert contents(lake, "bronze", "seq") == sorted(range(1, BATCHES + 1), key=str)
    rows = contents(lake, "readings", "n", "index")
    assert len(rows) == len(set(rows)) == BATCHES * READINGS
