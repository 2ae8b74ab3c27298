"""What comes wrong, or lies wrong on the disk: a row of `quarantine` or a clear failure, never a wrong table
and never half a commit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.refine import run as refine
from hub_jobs.tables.delta import ensure_table
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import OTHER_RUN, batch_row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

GOOD = b'{"metric":"good","value":1}\n'


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A refined lake: two batches in two files of bronze, one with a bad line."""
    where = tmp_path / "lake"
    given = [batch_row(GOOD * 3, n=1, source_seq=1), batch_row(GOOD + b"bad\n", n=2, source_seq=2)]
    add_bronze(where, given, files=2)
    return where


def _refine(lake: Path, capfd: pytest.CaptureFixture[str]) -> tuple[Exit, str]:
    capfd.readouterr()
    code = refine.main(["--lake", str(lake)])
    return code, capfd.readouterr().err


def _state(lake: Path) -> list[Any]:
    return [contents(lake, "readings", "n", "index"), contents(lake, "quarantine", "seq", "line", "reason")]


REFINED: list[list[Any]] = [[(1, 0), (1, 1), (1, 2), (2, 0)], [(2, 1, "bad line")]]


def test_a_table_that_was_deleted_is_made_again_or_missed_in_words(
    lake: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _refine(lake, capfd)
    for name in ("bronze", "readings", "quarantine"):
        changed = tmp_path / name
        shutil.copytree(lake, changed)
        shutil.rmtree(changed / name)
        code, said = _refine(changed, capfd)
        if name == "bronze":
            assert (code, _state(changed)) == (Exit.FAILED, REFINED)
            assert f"table {changed / 'bronze'} is gone" in said
        elif name == "readings":
            assert (code, _state(changed)) == (Exit.WELL, REFINED)
        else:
            assert (code, _state(changed)) == (Exit.WELL, [REFINED[0], []])
            assert audit.main(["--lake", str(changed)]) == Exit.LOSS
            assert "batch 2: indexes 1 of 2 are missing" in capfd.readouterr().out


def test_what_others_put_into_a_table_s_folder_is_not_read_and_a_false_commit_is_refused(
    lake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _refine(lake, capfd)
    for name in ("bronze", "readings", "quarantine"):
        mine = next((lake / name).glob("*.parquet"))
        shutil.copy(mine, lake / name / "copy.parquet")
        (lake / name / "notes.txt").write_text("not a table")
        (lake / name / "event_date=2026-11-21").mkdir()
        shutil.copy(mine, lake / name / "event_date=2026-11-21" / mine.name)
    add_bronze(lake, [batch_row(GOOD, n=1, run=OTHER_RUN, source_seq=3)])

    assert _refine(lake, capfd)[0] == Exit.WELL
    assert _state(lake) == [sorted([*REFINED[0], (1, 0)]), REFINED[1]]
    assert audit.main(["--lake", str(lake)]) == Exit.WELL

    table = ensure_table(lake, "readings")
    (lake / "readings" / "_delta_log" / f"{table.delta.version() + 1:020}.json").write_text("not a commit")
    code, said = _refine(lake, capfd)
    assert code == Exit.FAILED
    assert f"table {lake / 'readings'} can't be read" in said
