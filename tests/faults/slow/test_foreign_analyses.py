"""What `rollup`, `gaps` and `petiole where` tell does not depend on which program wrote the files."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.contract import Exit
from hub_jobs.gaps import run as gaps
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import is_own
from hub_jobs.tables.scan import files
from hub_jobs.where import DomainFindings, ScanPart, Waiting, look, open_lake
from tests.faults.report import Case
from tests.spark.lakes import contents
from tests.spark.plants import Sent, bronze, every, fill
from tests.spark.test_foreign_files import PROGRAMS
from tests.unit.hub_jobs.rows import OTHER_RUN, RUN

START = datetime(2026, 11, 21, tzinfo=UTC)
END = START + timedelta(hours=2)
MINUTE = timedelta(minutes=1)
AWAY = (START + 20 * MINUTE, START + 50 * MINUTE)
REFINED = ("bronze", "readings", "seen")
WINDOWS = ("rollup_1m", "rollup_1h", "rollup_1d")
THIRD_RUN = RUN[:-1] + "f"
LATER = [Sent(AWAY[0] + at * MINUTE, "pump-1", "litres_total", 50.0 + at) for at in (5, 6)]


def plant() -> list[Sent]:
    """A counter with a hole, a text, and a temperature of two series."""
    moments = every(START, END, MINUTE, but=AWAY)
    sent = [Sent(ts, "pump-1", "litres_total", float(at % 40)) for at, ts in enumerate(moments)]
    sent += [Sent(ts, "pump-1", "state", "on") for ts in moments]
    return sent + [
        Sent(ts, "pump-2", "heat", at / 3, tags=(("axis", "xy"[at % 2]),)) for at, ts in enumerate(moments)
    ]


def filled(lake: Path) -> None:
    """Two commits, so that there are two files to write together."""
    sent = plant()
    fill(lake, bronze(sent[::2]))
    fill(lake, bronze(sent[1::2], OTHER_RUN))


def told(lake: Path) -> list[Any]:
    """What the three of them say of a lake, and all windows."""
    assert rollup.main(["--lake", str(lake)]) is Exit.WELL
    report = lake.with_suffix(".json")
    times = ["--from", START.isoformat(), "--to", END.isoformat()]
    assert gaps.main(["--lake", str(lake), "--json", str(report), *times]) is Exit.WELL
    found = json.loads(report.read_text())
    del found["at"]
    windows = [contents(lake, name) for name in WINDOWS]
    return [windows, found, seen_by_where(lake)]


def seen_by_where(lake: Path) -> DomainFindings:
    return look(open_lake(lake), ScanPart("edge-1"), Waiting(), "pump-1")


def test_what_is_told_of_a_lake_does_not_depend_on_who_wrote_its_files(tmp_path: Path, case: Case) -> None:
    case.expected = "windows, gaps and counts are those of the same lake in files of its own jobs"
    own, other = tmp_path / "own", tmp_path / "other"
    filled(own)
    shutil.copytree(own, other)
    for name in REFINED:
        PROGRAMS["DuckDB"](other / name)
    assert rollup.main(["--lake", str(other)]) is Exit.WELL
    for name in (*REFINED, *WINDOWS):
        PROGRAMS["dictionaries"](other / name)
    for lake in (own, other):
        fill(lake, bronze(LATER, THIRD_RUN))

    assert told(other) == told(own)

    (late,) = [row for row in contents(own, "rollup_1h", "window", "metric", "count") if row[2] == 33]
    assert late == (START, "litres_total", 33), (
        "31 minutes of the first hour, and two readings that came late"
    )
    device = seen_by_where(other).device
    assert device is not None
    assert device.in_readings == 91 * 2 + len(LATER)
    named = files(ensure_table(other, "readings"))["path"].to_pylist()
    assert sum(not is_own(path) for path in named) == 1
    case.seen.append("all three tell the same of both lakes")
