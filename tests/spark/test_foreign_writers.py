"""Another program rewrites a table that a Spark job is about to commit to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from tests.harness.foreign import before_commit, compact
from tests.spark.lakes import add_bronze, contents
from tests.spark.test_clocks import batch, correction, right, stamped
from tests.unit.hub_jobs.rows import batch_row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'


def refined(lake: Path) -> Exit:
    return refine.main(["--lake", str(lake)])


def ingest(lake: Path, *numbers: int) -> None:
    add_bronze(lake, [batch_row(LINE * 2 + b"bad\n", n, source_seq=n) for n in numbers])


def places(lake: Path) -> list[tuple[int, int]]:
    return sorted(contents(lake, "readings", "n", "index"))


def every(*numbers: int) -> list[tuple[int, int]]:
    return [(n, index) for n in numbers for index in (0, 1)]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Readings and quarantine of two batches, in two files each."""
    for n in (1, 2):
        ingest(tmp_path, n)
        assert refined(tmp_path) is Exit.WELL
    return tmp_path


@pytest.mark.parametrize("name", ["readings", "quarantine"])
def test_readings_that_are_added_while_another_program_rewrites_are_there_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ingest(lake, 3)
    happened = before_commit(monkeypatch, name, compact)

    assert refined(lake) is Exit.WELL

    assert happened
    assert places(lake) == every(1, 2, 3)
    assert len(contents(lake, "quarantine")) == 3


def test_a_correction_of_readings_that_another_program_rewrites_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        add_bronze(tmp_path, [batch(n)])
        assert refined(tmp_path) is Exit.WELL
    add_bronze(tmp_path, [correction(3)])
    happened = before_commit(monkeypatch, "readings", compact)

    assert refined(tmp_path) is Exit.CONFLICT

    assert happened
    assert len(stamped(tmp_path)) == 4
    assert refined(tmp_path) is Exit.WELL
    assert stamped(tmp_path) == sorted([*right(1), *right(2)], key=str)


@pytest.mark.parametrize("name", ["readings", "quarantine"])
def test_a_replay_that_another_program_overtakes_is_a_conflict(
    lake: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = ["--lake", str(lake), "--stream", "TELEMETRY_0", "--from-seq", "1"]
    happened = before_commit(monkeypatch, name, compact)

    assert replay.main(options) is Exit.CONFLICT

    assert happened
    assert places(lake) == every(1, 2)
    assert len(contents(lake, "quarantine")) == 2
    assert replay.main(options) is Exit.WELL
    assert places(lake) == every(1, 2)
    assert len(contents(lake, "quarantine")) == 2
