"""What audits said long ago is deleted, the newest never."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.compaction import FEW
from hub_jobs.tables.delta import ensure_table
from tests.spark.lakes import commit, contents

FIRST = datetime(2026, 1, 1, 3, tzinfo=UTC)
RUNS = 3


def audit(lake: Path, day: int) -> None:
    """What the audit of a night says of each run."""
    rows = [
        {"at": FIRST + timedelta(days=day), "domain": "edge-1", "run": f"run-{number}", "missing": day}
        for number in range(RUNS)
    ]
    commit(lake, "audit", rows)


def days(lake: Path) -> list[int]:
    """The nights of which each run has its row."""
    found = contents(lake, "audit", "missing")
    assert all(found.count(day) == RUNS for day in found)
    return sorted(set(found))


def maintained(lake: Path, *arguments: str) -> None:
    assert maintain.main(["--lake", str(lake), *arguments]) is Exit.WELL


def test_what_audits_said_is_kept_for_ninety_days_and_deleted_once_a_month(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in range(0, 121, 10):
        audit(tmp_path, day)
    maintained(tmp_path)
    assert days(tmp_path) == [*range(0, 121, 10)], "all of it, in one file now"

    audit(tmp_path, 121)
    maintained(tmp_path, "--dry-run")
    assert days(tmp_path)[0] == 0
    maintained(tmp_path)
    assert days(tmp_path) == [*range(40, 121, 10), 121]
    assert f"audit: {4 * RUNS} rows of audits before 2026-02-01 are deleted" in capsys.readouterr().err

    written = ensure_table(tmp_path, "audit").delta.version()
    maintained(tmp_path)
    assert ensure_table(tmp_path, "audit").delta.version() == written, "until another month has passed"


def test_the_newest_audit_stays_however_old_it_is(tmp_path: Path) -> None:
    for day in range(FEW):
        audit(tmp_path, day)
    maintained(tmp_path)
    assert days(tmp_path) == [*range(FEW)]
    audit(tmp_path, 400)
    maintained(tmp_path)
    assert days(tmp_path) == [400]
