"""Corrections of clocks with real Spark and real tables: when they come before, with, or after what they are
about."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Clock, Correction, Exit, machine_time
from hub_jobs.audit.compare_contents import compare_contents
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.refine import run as refine
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import ensure_table
from tests.harness.clocks import SECOND
from tests.spark.lakes import DRIVER, add_bronze, contents, killed, orphans
from tests.unit.hub_jobs.rows import (
    OTHER_RUN,
    RUN,
    SEALED_NS,
    batch_headers,
    batch_row,
    correction_row,
    direct_row,
    header_block,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

CORRECTION = Correction("edge-1", "b", 0, 100 * SECOND, 0, SEALED_NS)
RIGHT = datetime.fromtimestamp(SEALED_NS / SECOND + 50, UTC)
WRONG = datetime.fromtimestamp(50, UTC)


def batch(n: int, cls: str = "normal", boot: str = "b") -> dict[str, Any]:
    """A batch whose first line was stamped by the machine, and whose second by a device."""
    ts = machine_time(50 * SECOND)
    text = b"".join(
        f'{{"ts":"{one}","metric":"m","value":1}}\n'.encode() for one in (ts, ts.replace("-00:00", "Z"))
    )
    run = RUN if boot == "b" else OTHER_RUN
    headers = batch_headers(n, 2, cls=cls, run=run, sealed=(51 * SECOND, Clock(False, boot, 51 * SECOND)))
    subject = f"tel.edge-1.{cls}._batch.http"
    own = {"headers": header_block(headers), "subject": subject, "class": cls}
    return batch_row(text, n=n, source_seq=n, run=run) | own


def correction(source_seq: int) -> dict[str, Any]:
    """The record."""
    return correction_row(CORRECTION, source_seq=source_seq)


def run(lake: Path) -> Exit:
    """Refine."""
    return refine.main(["--lake", str(lake)])


def stamped(lake: Path) -> list[Any]:
    """The readings by place, with what is said of their times."""
    return contents(lake, "readings", "class", "n", "index", "ts", "ts_source", "ts_original")


def right(n: int, cls: str = "normal") -> list[Any]:
    """How the readings of a batch stand once its clock is known."""
    return [(cls, n, 0, RIGHT, "corrected", WRONG), (cls, n, 1, WRONG, "device", None)]


def wrong(n: int, cls: str = "normal") -> list[Any]:
    """How they stand before."""
    return [(cls, n, 0, WRONG, "agent", None), (cls, n, 1, WRONG, "device", None)]


def test_a_correction_reaches_what_came_before_it_with_it_and_after_it(tmp_path: Path) -> None:
    add_bronze(tmp_path, [batch(1), batch(2, boot="other"), direct_row(b"1", source_seq=3)], files=2)
    assert run(tmp_path) == Exit.WELL
    others = [one for one in stamped(tmp_path) if one[0] != "normal" or one[1] is None]
    assert stamped(tmp_path) == sorted([*wrong(1), *wrong(2), *others], key=str)

    add_bronze(tmp_path, [correction(4), batch(5)])
    assert run(tmp_path) == Exit.WELL
    expected = [*right(1), *wrong(2), *right(5), *others]
    assert stamped(tmp_path) == sorted(expected, key=str)

    add_bronze(tmp_path, [batch(1, "critical"), correction(4)])
    assert run(tmp_path) == Exit.WELL
    assert stamped(tmp_path) == sorted([*expected, *right(1, "critical")], key=str)
    assert run(tmp_path) == Exit.WELL
    assert contents(tmp_path, "quarantine") == []
    assert contents(tmp_path, "readings", "event_date") == sorted(
        (one[3].date() for one in stamped(tmp_path)), key=str
    )
    assert compare_contents(tables_of(tmp_path)).sentences == []


def tables_of(lake: Path) -> AuditTables:
    """What the audit compares."""
    bronze, readings, quarantine = (ensure_table(lake, one) for one in ("bronze", "readings", "quarantine"))
    done = stream_history.offsets(stream_history.all_of(bronze), readings)
    return AuditTables(bronze, readings, quarantine, done)


_KILLED = """
from hub_jobs.refine.run import main
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
Table.rewrite = die
main(["--lake", {lake!r}])
"""


def test_a_driver_killed_before_its_correction_leaves_it_to_the_next(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    add_bronze(lake, [batch(1), batch(2)])
    assert run(lake) == Exit.WELL
    add_bronze(lake, [correction(3), batch(4)])

    killed(tmp_path / "driver.py", DRIVER + _KILLED.format(lake=str(lake)))
    assert stamped(lake) == [*wrong(1), *wrong(2)]
    assert run(lake) == Exit.WELL

    assert stamped(lake) == [*right(1), *right(2), *right(4)]


def test_of_two_drivers_that_correct_one_does_and_the_other_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_bronze(tmp_path, [batch(1), batch(2)])
    assert run(tmp_path) == Exit.WELL
    add_bronze(tmp_path, [correction(3), batch(4)])
    first, results = run_tasks, []

    def overtaken(*given: Any) -> Any:
        written = first(*given)
        monkeypatch.setattr(refine, "run_tasks", first)
        results.append(run(tmp_path))
        return written

    monkeypatch.setattr(refine, "run_tasks", overtaken)
    results.append(run(tmp_path))

    assert results == [Exit.WELL, Exit.CONFLICT]
    assert stamped(tmp_path) == [*right(1), *right(2), *right(4)]
    replaced = 1
    assert orphans(tmp_path, "readings") == replaced
