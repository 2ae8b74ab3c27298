"""Spark with the Delta jar rewrites tables while the jobs of the same lake commit to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from tests.harness.foreign import before_commit
from tests.spark.lakes import add_bronze, contents
from tests.spark.test_clocks import batch, correction, right, stamped
from tests.unit.hub_jobs.rows import batch_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Act = Callable[[Path], object]
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


@pytest.fixture
def optimize(spark: SparkSession) -> Act:
    """OPTIMIZE of a whole table, with another order of its rows."""
    return lambda path: spark.sql(f"OPTIMIZE delta.`{path}` ZORDER BY (class, run)").collect()


@pytest.fixture
def delete(spark: SparkSession) -> Act:
    """DELETE of the first row of the first batch."""
    where = "n = 1 AND coalesce(index, 0) = 0"
    return lambda path: spark.sql(f"DELETE FROM delta.`{path}` WHERE {where}").collect()


def test_readings_that_are_added_while_spark_optimizes_and_deletes_are_there_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch, optimize: Act, delete: Act
) -> None:
    acts = {3: optimize, 4: delete}
    for n, act in acts.items():
        ingest(lake, n)
        with monkeypatch.context() as patch:
            happened = before_commit(patch, "readings", act)
            assert refined(lake) is Exit.WELL
        assert happened

    assert places(lake) == every(1, 2, 3, 4)[1:]
    assert len(contents(lake, "quarantine")) == 4
    assert audit.main(["--lake", str(lake)]) is Exit.LOSS, "what a program deletes is missing"


@pytest.mark.parametrize("name", ["readings", "quarantine"])
def test_a_replay_that_spark_overtakes_is_a_conflict(
    lake: Path, monkeypatch: pytest.MonkeyPatch, name: str, optimize: Act
) -> None:
    options = ["--lake", str(lake), "--stream", "TELEMETRY_0", "--from-seq", "1"]
    happened = before_commit(monkeypatch, name, optimize)

    assert replay.main(options) is Exit.CONFLICT

    assert happened
    assert replay.main(options) is Exit.WELL
    assert places(lake) == every(1, 2)
    assert len(contents(lake, "quarantine")) == 2


def test_a_correction_that_spark_overtakes_is_a_conflict_and_made_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimize: Act
) -> None:
    for n in (1, 2):
        add_bronze(tmp_path, [batch(n)])
        assert refined(tmp_path) is Exit.WELL
    add_bronze(tmp_path, [correction(3)])
    happened = before_commit(monkeypatch, "readings", optimize)

    assert refined(tmp_path) is Exit.CONFLICT

    assert happened
    assert refined(tmp_path) is Exit.WELL
    assert stamped(tmp_path) == sorted([*right(1), *right(2)], key=str)


def test_nothing_is_lost_or_doubled_while_spark_optimizes_all_the_time(lake: Path, optimize: Act) -> None:
    done = threading.Event()
    optimized = 0
    faults: list[Exception] = []

    def again_and_again() -> None:
        nonlocal optimized
        while not done.is_set():
            try:
                optimize(lake / "readings")
                optimized += 1
            except Exception as error:
                if "Concurrent" not in str(error):  # one of ours was faster
                    faults.append(error)
                    return

    other = threading.Thread(target=again_and_again)
    other.start()
    try:
        for n in range(3, 13):
            ingest(lake, n)
            assert refined(lake) is Exit.WELL
            assert maintain.main(["--lake", str(lake)]) in (Exit.WELL, Exit.CONFLICT)
    finally:
        done.set()
        other.join(120)

    assert faults == []
    assert optimized
    assert places(lake) == every(*range(1, 13))
    assert audit.main(["--lake", str(lake)]) is Exit.WELL
