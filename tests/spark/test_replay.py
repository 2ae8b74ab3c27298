"""`replay`: what is decoded again takes the place of what came of it before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import Table, ensure_table
from hub_jobs.tables.scan import files
from tests.spark import test_clocks as clocks
from tests.spark.lakes import DRIVER, add_bronze, commit, contents, killed
from tests.unit.hub_jobs.rows import ARRIVED_US, OTHER_RUN, batch_row, direct_row

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'


def replayed(lake: Path, *arguments: str, stream: str = "TELEMETRY_0") -> Exit:
    return replay.main(["--lake", str(lake), "--stream", stream, *arguments])


def everything(lake: Path) -> tuple[list[Any], list[Any]]:
    return contents(lake, "readings"), contents(lake, "quarantine")


def lose(lake: Path, name: str, gone: Callable[[pa.Table], Any]) -> None:
    """Take rows out of a table, as a wrong program would."""
    table = ensure_table(lake, name)
    paths = files(table)["path"].to_pylist()

    def kept(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.invert(pc.fill_null(gone(rows), False)))

    table.rewrite(rewrite(lake, table, paths, kept), paths, changed=True)


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with batches, a bad line, a repeat and a copy through another aggregate, other content under a
    known id, and two direct messages on one place."""
    lake = tmp_path_factory.mktemp("refined") / "lake"
    add_bronze(lake, [batch_row(LINE * 3, n=n, source_seq=n) for n in (1, 2, 3)])
    add_bronze(
        lake,
        [
            batch_row(LINE + b"bad\n", n=4, source_seq=4),
            batch_row(LINE * 3, n=2, source_seq=50),
            batch_row(LINE * 2, n=3, source_seq=51),
            direct_row(b"21.5", source_seq=5),
            direct_row(b"22.5", source_seq=5),
            batch_row(LINE, n=1, run=OTHER_RUN, source_seq=6),
        ],
    )
    assert refine.main(["--lake", str(lake)]) is Exit.WELL
    add_bronze(lake, [batch_row(LINE * 3, n=1, source_seq=60)])
    add_bronze(lake, [batch_row(LINE * 3, n=1, stream="TELEMETRY_1")])
    assert refine.main(["--lake", str(lake)]) is Exit.WELL
    return lake


@pytest.fixture
def lake(refined: Path, tmp_path: Path) -> Path:
    """A copy of that lake."""
    return Path(shutil.copytree(refined, tmp_path / "lake"))


def test_what_was_lost_or_decoded_wrongly_is_as_it_should_be(lake: Path) -> None:
    before = everything(lake)
    assert len(before[0]) == 3 * 3 + 1 + 1 + 2
    assert replayed(lake, "--from-seq", "1") is Exit.WELL
    assert everything(lake) == before, "a replay of what is right changes nothing"

    lose(lake, "readings", lambda rows: pc.and_(pc.equal(rows["n"], 2), pc.equal(rows["index"], 1)))
    lose(lake, "readings", lambda rows: pc.equal(rows["value"], 22.5))
    lose(lake, "quarantine", lambda rows: pc.equal(rows["reason"], "bad line"))
    harmed = everything(lake)
    assert (len(before[0]) - len(harmed[0]), len(before[1]) - len(harmed[1])) == (2, 1)
    assert replayed(lake, "--from-seq", "1", "--dry-run") is Exit.WELL
    assert everything(lake) == harmed
    assert replayed(lake, "--from-seq", "1", "--to-seq", "3") is Exit.WELL
    assert len(everything(lake)[0]) == len(before[0]) - 1, "only the range is"
    assert replayed(lake, "--since", "2026-01-01T00:00:00Z") is Exit.WELL
    assert everything(lake) == before
    assert refine.main(["--lake", str(lake)]) is Exit.WELL
    assert everything(lake) == before, "and refine takes nothing a second time"


def test_a_copy_in_another_stream_stands_for_a_batch(lake: Path) -> None:
    before = contents(lake, "readings", "run", "n", "index")
    lose(lake, "readings", lambda rows: pc.equal(rows["n"], 1))
    assert replayed(lake, "--from-seq", "1", stream="TELEMETRY_1") is Exit.WELL
    found = contents(lake, "readings", "run", "n", "index")
    lost = [row for row in before if row not in found]
    assert [row[0] for row in lost] == [OTHER_RUN], "of the batch that the other stream does not hold"


def test_what_has_no_payload_any_more_stays_as_it_is(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(lake)
    assert maintain.main(["--lake", str(lake), "--thin-bronze-after", "0"]) is Exit.WELL
    assert replayed(lake, "--from-seq", "1") is Exit.WELL
    assert everything(lake) == before
    assert "their payloads were dropped" in capsys.readouterr().err
    shutil.rmtree(lake / "readings")
    shutil.rmtree(lake / "quarantine")
    shutil.rmtree(lake / "seen")
    assert refine.main(["--lake", str(lake)]) is Exit.WELL
    assert contents(lake, "readings") == []
    reasons = contents(lake, "quarantine", "reason")
    assert reasons.count("other content under a known id") == 1
    assert set(reasons) == {"payload was dropped", "other content under a known id"}


def test_a_replay_that_another_job_overtook_changes_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(lake)
    rewritten = Table.rewrite

    def overtaken(table: Table, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(Table, "rewrite", rewritten)
        again = ensure_table(lake, table.name)
        paths = files(again)["path"].to_pylist()
        again.rewrite(rewrite(lake, again, paths), paths)
        rewritten(table, *given, **options)

    monkeypatch.setattr(Table, "rewrite", overtaken)
    assert replayed(lake, "--from-seq", "1") is Exit.CONFLICT
    assert everything(lake) == before
    assert replayed(lake, "--from-seq", "1") is Exit.WELL
    assert everything(lake) == before


def test_a_replay_that_a_correction_overtook_leaves_no_wrong_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The correction finds no readings of the batch, which the replay decodes without it."""
    add_bronze(tmp_path, [clocks.batch(1)])
    assert clocks.run(tmp_path) is Exit.WELL
    lose(tmp_path, "readings", lambda rows: pc.equal(rows["n"], 1))

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(replay, "run_tasks", run_tasks)
        add_bronze(tmp_path, [clocks.correction(2)])
        assert clocks.run(tmp_path) is Exit.WELL
        return run_tasks(*given)

    monkeypatch.setattr(replay, "run_tasks", overtaken)
    assert replayed(tmp_path, "--from-seq", "1") is Exit.CONFLICT
    assert replayed(tmp_path, "--from-seq", "1") is Exit.WELL
    assert clocks.stamped(tmp_path) == clocks.right(1)


def test_what_an_older_version_could_not_take_outlives_a_kill_between_the_commits_and_its_payload(
    lake: Path, tmp_path: Path
) -> None:
    before = contents(lake, "readings")
    lose(lake, "readings", lambda rows: pc.and_(pc.equal(rows["n"], 2), pc.equal(rows["index"], 1)))
    place = {"stream": "TELEMETRY_0", "created": "2026-11-21T00:00:00Z", "seq": 2, "line": 1}
    commit(lake, "quarantine", [{**place, "reason": "bad line", "n": 2}])
    program = f"""{DRIVER}
from hub_jobs.replay.run import main
rewrite, rewritten = Table.rewrite, []
def die(table, *given, **options):
    if rewritten:
        os.kill(os.getpid(), signal.SIGKILL)
    rewritten.append(rewrite(table, *given, **options))
Table.rewrite = die
main(["--lake", {str(lake)!r}, "--stream", "TELEMETRY_0", "--from-seq", "1"])
"""
    killed(tmp_path / "driver.py", program)
    assert maintain.main(["--lake", str(lake), "--thin-bronze-after", "0"]) is Exit.WELL
    assert replayed(lake, "--from-seq", "1") is Exit.WELL
    assert contents(lake, "readings") == before


def test_a_range_must_be_given_in_full(lake: Path, tmp_path: Path) -> None:
    for arguments in ([], ["--since", "noon"], ["--since", "2026-11-21T06:00:00"]):
        with pytest.raises(SystemExit):
            replayed(lake, *arguments)
    assert replayed(tmp_path / "none", "--from-seq", "1") is Exit.USAGE
    assert replayed(lake, "--from-seq", "1", stream="NONE") is Exit.USAGE


def test_what_was_deleted_for_its_age_does_not_come_back(lake: Path) -> None:
    readings = ensure_table(lake, "readings")
    readings.expire(files(readings)["path"].to_pylist(), ARRIVED_US + 1_000_000)
    later = {"arrived": ARRIVED_US + 2_000_000}
    add_bronze(lake, [batch_row(LINE * 3, n=2, source_seq=70, **later), batch_row(LINE, n=9, **later)])
    assert refine.main(["--lake", str(lake)]) is Exit.WELL

    for _ in range(2):
        assert contents(lake, "readings", "n") == [9]
        assert replayed(lake, "--from-seq", "1") is Exit.WELL
