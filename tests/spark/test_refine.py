"""`refine` with real Spark and real tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.refine import plan
from hub_jobs.refine import run as refine
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.delta import Table, ensure_table, open_table
from hub_jobs.tables.parquet_reading import UnreadableError
from hub_jobs.tables.schemas import VERSION
from tests.spark.lakes import DRIVER, add_bronze, contents, killed, orphans, run_program
from tests.unit.hub_jobs.damage import cut, flip
from tests.unit.hub_jobs.rows import OTHER_RUN, batch_row, direct_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = b'{"metric":"m","value":1}\n'
OTHER_LINE = b'{"metric":"m","value":2}\n'


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with four batches of two readings each, a bad line among them, and a direct message."""
    where = tmp_path / "lake"
    batches = [batch_row(LINE * 2, n=n, source_seq=n) for n in (1, 2, 3)]
    add_bronze(
        where,
        [
            *batches,
            batch_row(LINE + b"bad\n", n=4, source_seq=4),
            direct_row(b"21.5", source_seq=5),
        ],
        files=2,
    )
    return where


def _run(lake: Path) -> Exit:
    return refine.main(["--lake", str(lake)])


def _readings(lake: Path) -> list[Any]:
    return contents(lake, "readings", "n", "index")


def _named(lake: Path) -> list[Any]:
    return contents(lake, "quarantine", "seq", "line", "reason")


EXPECTED = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (None, 0)]
BAD_LINE = [(4, 1, "bad line")]


def test_every_reading_is_there_once_however_often_the_job_runs(lake: Path) -> None:
    assert [_run(lake) for _ in range(3)] == [Exit.WELL] * 3

    assert _readings(lake) == EXPECTED
    assert _named(lake) == BAD_LINE

    add_bronze(lake, [batch_row(LINE, n=5, source_seq=6)])
    assert _run(lake) == Exit.WELL
    assert _readings(lake) == sorted([*EXPECTED, (5, 0)], key=str)
    assert _named(lake) == BAD_LINE


def test_repeats_of_earlier_runs_are_dropped_and_other_content_is_named(lake: Path) -> None:
    assert _run(lake) == Exit.WELL
    add_bronze(
        lake,
        [
            batch_row(LINE * 2, n=1, source_seq=1),
            batch_row(OTHER_LINE * 2, n=2, source_seq=2),
            batch_row(OTHER_LINE, n=1, source_seq=8, run=OTHER_RUN),
            direct_row(b"21.5", source_seq=5),
            direct_row(b"21.5", source_seq=6),
            direct_row(b"22.5", source_seq=5),
        ],
    )

    assert _run(lake) == Exit.WELL

    added = [(1, 0), (None, 0), (None, 0)]
    assert _readings(lake) == sorted(EXPECTED + added, key=str)
    assert _named(lake) == [*BAD_LINE, (7, None, "other content under a known id")]


def test_a_batch_that_comes_through_another_aggregate_is_a_repeat_too(lake: Path) -> None:
    add_bronze(lake, [batch_row(LINE * 2, n=n, stream="TELEMETRY_1") for n in (1, 2)])

    assert _run(lake) == Exit.WELL

    assert _readings(lake) == EXPECTED


@pytest.mark.parametrize("harm", [cut, Path.unlink, partial(flip, column="first")])
def test_what_was_seen_is_made_again_when_a_file_of_it_is_damaged(
    lake: Path, harm: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(lake) == Exit.WELL
    (file,) = (lake / "seen").glob("*.parquet")
    harm(file)
    add_bronze(lake, [batch_row(LINE * 2, n=1, source_seq=1), batch_row(LINE, n=5, source_seq=6)])

    assert _run(lake) == Exit.WELL

    said = capfd.readouterr().err
    assert f"refine: file {file} can't be read: " in said
    assert "; the table seen is made again from bronze\n" in said
    assert _readings(lake) == sorted([*EXPECTED, (5, 0)], key=str)
    seen = contents(lake, "seen", "space", "first", "last")
    assert (f"batch/edge-1/normal/{batch_row(LINE)['run']}", 1, 5) in seen
    assert audit.main(["--lake", str(lake)]) == Exit.WELL


def test_what_was_seen_is_not_made_again_when_it_is_only_not_given_out(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise UnreadableError(lake, "Access denied", damaged=False)

    assert _run(lake) == Exit.WELL
    add_bronze(lake, [batch_row(LINE, n=5, source_seq=6)])
    with monkeypatch.context() as patch:
        patch.setattr(seen, "batches", refused)
        assert _run(lake) == Exit.FAILED

    assert "Access denied" in capfd.readouterr().err
    assert _readings(lake) == EXPECTED


def test_a_backlog_is_refined_in_passes_of_bounded_size(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "MAX_ROWS", 2)
    add_bronze(lake, [batch_row(LINE * 2, n=n, source_seq=n) for n in (5, 6, 7)])

    assert _run(lake) == Exit.WELL

    assert capfd.readouterr().err.count("readings,") == 3
    assert _readings(lake) == sorted(
        [*EXPECTED, *((n, index) for n in (5, 6, 7) for index in (0, 1))], key=str
    )


_KILLED_AT = """
from hub_jobs.refine.run import main
commit = Table.commit
def die(table, *args, **options):
    if table.name == {name!r}:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(table, *args, **options)
Table.commit = die
main(["--lake", {lake!r}])
"""


_STOPPED_AT = """
from hub_jobs.refine import plan
from hub_jobs.refine.run import main
plan.MAX_BYTES_A_CORE = 1
commit, commits = Table.commit, []
def interrupted(table, *args, **options):
    commits.append(table.name)
    if commits.count("readings") == 1 and table.name == "quarantine":
        os.kill(os.getpid(), signal.SIGTERM)
    commit(table, *args, **options)
Table.commit = interrupted
sys.exit(main(["--lake", {lake!r}]))
"""


def test_a_signal_between_the_commits_of_a_pass_lets_it_end_and_the_next_run_goes_on(
    lake: Path, tmp_path: Path
) -> None:
    for n in (5, 6, 7):
        add_bronze(lake, [batch_row(LINE * 2 + b"worse\n", n=n, source_seq=n + 1)])

    code, said = run_program(tmp_path / "driver.py", DRIVER + _STOPPED_AT.format(lake=str(lake)))

    assert (code, said.splitlines()[-1]) == (Exit.WELL, "refine: stopped"), said
    assert said.count(" readings, ") == 2, "a pass of each of the first two files of five"
    assert _readings(lake) == EXPECTED
    assert _named(lake) == BAD_LINE
    assert _run(lake) == Exit.WELL
    later = [(n, index) for n in (5, 6, 7) for index in (0, 1)]
    assert _readings(lake) == sorted([*EXPECTED, *later], key=str)
    assert _named(lake) == [*BAD_LINE, *((seq, 2, "bad line") for seq in (6, 7, 8))]


@pytest.mark.parametrize("name", ["quarantine", "readings"])
def test_a_driver_killed_before_either_commit_loses_and_doubles_nothing(
    lake: Path, tmp_path: Path, name: str
) -> None:
    killed(tmp_path / "driver.py", DRIVER + _KILLED_AT.format(name=name, lake=str(lake)))
    assert _readings(lake) == []
    assert _named(lake) == ([] if name == "quarantine" else BAD_LINE)
    assert orphans(lake, "readings") > 0
    add_bronze(lake, [batch_row(LINE + b"worse\n", n=5, source_seq=6), batch_row(LINE * 2, n=1)])

    assert _run(lake) == Exit.WELL

    assert _readings(lake) == sorted([*EXPECTED, (5, 0)], key=str)
    assert _named(lake) == [*BAD_LINE, (6, 1, "bad line")]


def test_a_run_that_began_with_less_of_bronze_finishes_no_more_than_it_holds(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its looks at bronze and at quarantine another one refines newer rows, and is killed between its
    commits."""
    first = stream_history.open_bronze

    def overtaken(at: Path) -> Table | None:
        held = first(at)
        monkeypatch.setattr(stream_history, "open_bronze", first)
        add_bronze(lake, [batch_row(LINE + b"worse\n", n=5, source_seq=6)])
        killed(tmp_path / "driver.py", DRIVER + _KILLED_AT.format(name="readings", lake=str(lake)))
        return held

    monkeypatch.setattr(stream_history, "open_bronze", overtaken)

    assert _run(lake) == Exit.WELL

    assert _readings(lake) == sorted([*EXPECTED, (5, 0)], key=str)
    assert _named(lake) == [*BAD_LINE, (6, 1, "bad line")]


def test_what_another_run_refined_between_two_passes_the_second_one_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_ROWS", 1)
    for n in (1, 2):
        add_bronze(tmp_path, [batch_row(LINE, n=n, source_seq=n)])
    commit = Table.commit

    def overtaken(table: Table, *given: Any, **options: Any) -> None:
        commit(table, *given, **options)
        if table.name == "readings":
            monkeypatch.setattr(Table, "commit", commit)
            assert _run(tmp_path) == Exit.WELL
            add_bronze(tmp_path, [batch_row(LINE, n=n, source_seq=n) for n in (2, 3)])

    monkeypatch.setattr(Table, "commit", overtaken)

    assert _run(tmp_path) == Exit.WELL

    assert _readings(tmp_path) == [(1, 0), (2, 0), (3, 0)]
    assert audit.main(["--lake", str(tmp_path)]) == Exit.WELL


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> list[Exit]:
    """The first run is overtaken by a whole second one while its tasks write."""
    first = run_tasks
    results: list[Exit] = []

    def run(spark: SparkSession, task: Any, work: Any) -> Any:
        written: Any = first(spark, task, work)
        monkeypatch.setattr(refine, "run_tasks", first)
        results.append(_run(work[0].lake))
        return written

    monkeypatch.setattr(refine, "run_tasks", run)
    return results


def test_of_two_drivers_at_once_one_commits_and_the_other_says_so(lake: Path, overtaken: list[Exit]) -> None:
    overtaken.append(_run(lake))

    assert overtaken == [Exit.WELL, Exit.CONFLICT]
    assert _readings(lake) == EXPECTED
    assert _named(lake) == BAD_LINE
    assert orphans(lake, "readings") == orphans(lake, "quarantine") == 0


def test_a_table_of_a_newer_version_is_refused_in_words(
    lake: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = open_table(lake, "bronze")
    assert table is not None
    table.delta.alter.set_table_properties({"petiole.version": str(VERSION + 1)}, raise_if_not_exists=False)

    assert _run(lake) == Exit.FAILED

    assert (
        f"is of version {VERSION + 1} and this program knows versions up to {VERSION}"
        in capfd.readouterr().err
    )


def test_without_bronze_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert _run(tmp_path) == Exit.FAILED
    assert list(tmp_path.iterdir()) == []


def test_of_two_runs_that_finish_a_pass_one_quarantines_what_it_lacks(
    lake: Path, overtaken: list[Exit]
) -> None:
    """A pass was begun: its quarantine is committed, its readings are not."""
    bronze = ensure_table(lake, "bronze")
    (history,) = stream_history.all_of(bronze)
    ensure_table(lake, "quarantine").commit([], {history.refined: history.done or 0})

    assert (_run(lake), overtaken) == (Exit.CONFLICT, [Exit.WELL])

    assert _readings(lake) == EXPECTED
    assert _named(lake) == BAD_LINE
    assert orphans(lake, "readings") == 0
