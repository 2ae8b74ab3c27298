"""Readings that are deleted for their age are missed by nobody, and nothing else is deleted."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from agent.contract import Exit
from hub_jobs.maintain import expire
from hub_jobs.maintain import run as maintain
from hub_jobs.maintain.run import MaintainOptions
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.commits import ROLLED_UP
from hub_jobs.tables.compaction import FEW, compacted
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import files
from hub_jobs.tables.schemas import digest
from hub_jobs.times import micros
from hub_jobs.where import ScanPart, Waiting, look, open_lake
from tests.spark.lakes import DRIVER, add_bronze, audited, contents, killed
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, LEDGER, batch_row, direct_row, ledger_row

HOUR_US = 3_600_000_000
LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
HOURS = 6
AGES = -36_500.0
"""In days, so that all that is settled is old whatever the clock says."""


def arrived(rows: list[dict[str, Any]], hour: float) -> list[dict[str, Any]]:
    return [row | {"arrived": ARRIVED_US + int(hour * HOUR_US)} for row in rows]


def fill(lake: Path) -> None:
    """An hour after the other: a batch with a bad line, a device's message and one that is none."""
    for hour in range(HOURS):
        seq = 3 * hour + 1
        rows = [
            batch_row(LINE * 3 + b"bad\n", n=hour + 1, source_seq=seq),
            direct_row(b"1", source_seq=seq + 1),
            direct_row(b"no", source_seq=seq + 2),
        ]
        add_bronze(lake, arrived(rows, hour))
        refine_all(lake)
    said = LEDGER.encode().replace(b'"n":4', b'"n":6').replace(b"[[1,4]]", b"[[1,6]]")
    said = said.replace(b'"accepted":40,"stored":40', b'"accepted":24,"stored":24')
    row = ledger_row(LEDGER, source_seq=3 * HOURS + 1) | {"payload": said, "digest": digest(said)}
    add_bronze(lake, arrived([row], HOURS - 1))
    refine_all(lake)


def keep(lake: Path, days: float = AGES, *, dry_run: bool = False) -> None:
    assert maintain.run(MaintainOptions(lake, None, 7.0, dry_run, days)) is Exit.WELL


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of six hours, of which all but the last two are settled."""
    lake = tmp_path_factory.mktemp("expire") / "lake"
    fill(lake)
    code, said = audited(lake)
    assert (code, said["settled"]["until"] is None) == (Exit.WELL, False)
    return lake


@pytest.fixture
def lake(settled: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "lake"
    shutil.copytree(settled, copy)
    return copy


def batches(lake: Path) -> set[int]:
    """The numbers of the batches of which there are readings."""
    return {n for n in contents(lake, "readings", "n") if n is not None}


def test_what_is_deleted_for_its_age_is_missed_by_no_audit(lake: Path) -> None:
    keep(lake)

    assert batches(lake) == {5, 6}
    assert len(contents(lake, "quarantine", "seq")) == 4
    for options in ([], ["--all"], ["--deep"]):
        code, said = audited(lake, *options)
        assert (code, said["rows"][0]["missing"], said["rows"][0]["in_bronze"]) == (Exit.WELL, 0, 24), options
    found = look(open_lake(lake), ScanPart("edge-1"), Waiting(), "d")
    assert (found.lost, found.device and found.device.missing) == ([], 0)


def test_what_is_missing_of_the_rest_is_still_told(lake: Path) -> None:
    keep(lake)
    DeltaTable(str(lake / "readings")).delete('n = 5 AND "index" = 1')

    for options in ([], ["--all"]):
        code, said = audited(lake, *options)
        told = [finding for finding in said["findings"] if "batch 5: indexes 1 of 4 are missing" in finding]
        assert (code, len(told)) == (Exit.LOSS, 1)


def test_what_is_deleted_does_not_come_again(lake: Path) -> None:
    keep(lake)
    add_bronze(lake, arrived([batch_row(LINE * 3 + b"bad\n", n=1, source_seq=1)], HOURS))
    add_bronze(lake, arrived([direct_row(b"1", source_seq=2), direct_row(b"no", source_seq=3)], HOURS))
    refine_all(lake)
    assert batches(lake) == {5, 6}
    for options in ([], ["--all"], ["--deep"]):
        code, said = audited(lake, *options)
        assert (code, said["findings"][1:]) == (Exit.WELL, []), options
    for device in ("d", "pump"):
        found = look(open_lake(lake), ScanPart("edge-1"), Waiting(), device)
        assert (found.lost, found.device and found.device.missing) == ([], 0)


def test_nothing_is_deleted_that_is_not_settled(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(lake, "readings")
    keep(lake, dry_run=True)
    assert contents(lake, "readings") == before

    DeltaTable(str(lake / "readings")).delete("n = 2")
    keep(lake)
    assert "until the next audit" in capsys.readouterr().err
    assert batches(lake) == {1, 3, 4, 5, 6}

    shutil.rmtree(lake / "settled")
    keep(lake)
    assert "no audit has settled anything" in capsys.readouterr().err
    assert batches(lake) == {1, 3, 4, 5, 6}


def test_what_came_while_the_clock_of_the_hub_was_at_1970_is_not_old(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is settled like all else, and would be deleted in the night after it came."""
    row = batch_row(LINE * 3, n=7, source_seq=3 * HOURS + 2) | {"arrived": HOUR_US}
    add_bronze(lake, [row])
    refine_all(lake)
    add_bronze(lake, arrived([direct_row(b"1", source_seq=3 * HOURS + 3)], HOURS + 3))
    refine_all(lake)
    assert audited(lake)[1]["settled"]["until"] is not None

    keep(lake)

    assert batches(lake) == {7}
    assert "1 files stay that came while the hub's clock was far behind" in capsys.readouterr().err


def test_by_a_clock_that_is_far_ahead_nothing_is_old(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest message says how late it is: here the clock is days ahead of it."""
    keep(lake, 1 + 2 / 24)

    assert batches(lake) == {4, 5, 6}, "what is two hours older than the newest, and a day"
    assert "set it if it is ahead" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("days", "kept"),
    [((300, 299, 0.2, 0.1, 0), {1, 2, 3, 4, 5}), ((300, 299, 80, 60, 40, 20, 0), {3, 4, 5, 6, 7})],
    ids=["stepped", "rested"],
)
def test_what_came_before_the_clock_of_the_hub_stepped_ahead_is_not_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], days: tuple[float, ...], kept: set[int]
) -> None:
    """The clock of the machine has stepped with it, and an audit has settled what came before. A hub that
    rested so long, and has run for half of `--keep` since, is another matter."""
    now = (datetime.now(UTC).timestamp() * 1e6 - ARRIVED_US) / HOUR_US
    for n, ago in enumerate(days, 1):
        add_bronze(tmp_path, arrived([batch_row(LINE, n=n, source_seq=n)], now - 24 * ago))
        refine_all(tmp_path)
    audited(tmp_path)
    for _ in range(2):
        assert maintain.main(["--lake", str(tmp_path), "--thin-bronze-after", "90"]) is Exit.WELL
        keep(tmp_path, 90)

        assert batches(tmp_path) == kept
        assert {n for n, payload in contents(tmp_path, "bronze", "n", "payload") if payload} == kept
        assert capsys.readouterr().err.count("set the clock of the hub") == (2 if 1 in kept else 0)
        bronze = ensure_table(tmp_path, "bronze")
        every = files(bronze)["path"].to_pylist()
        bronze.rewrite(compacted(tmp_path, bronze, every), every)  # they stand in one file then


def test_a_file_whose_rows_are_all_older_than_the_time_that_is_kept_is_not_read(tmp_path: Path) -> None:
    """maintain runs each hour, and such files are nearly all of a lake of years."""
    at = datetime.now(UTC)
    now = (at.timestamp() * 1e6 - ARRIVED_US) / HOUR_US
    rows = [batch_row(LINE, n=n, source_seq=n) for n in range(1, 6)]
    stood = [arrived([row], now - 24 * ago) for row, ago in zip(rows, (300, 200, 100, 60, 20), strict=True)]
    add_bronze(tmp_path, stood[0] + stood[1])
    bronze = ensure_table(tmp_path, "bronze")
    (old,) = files(bronze)["path"].to_pylist()
    (bronze.path / old).unlink()
    for one in stood[2:]:
        add_bronze(tmp_path, one)
    bronze, since = ensure_table(tmp_path, "bronze"), micros(at - timedelta(days=90))
    assert expire.why_young(bronze, since, at, timedelta(days=90), "--keep") is None


def test_of_a_lake_that_is_younger_than_it_keeps_no_silence_is_named(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(lake, 36_500)

    assert batches(lake) == set(range(1, HOURS + 1))
    assert "no message arrived" not in capsys.readouterr().err


def test_nothing_is_deleted_before_it_is_rolled_up(lake: Path) -> None:
    made = ensure_table(lake, "rollup_1d")
    made.commit([], {ROLLED_UP: 2})
    keep(lake)
    assert batches(lake) == set(range(1, HOURS + 1))

    readings = ensure_table(lake, "readings")
    ensure_table(lake, "rollup_1d").commit([], {ROLLED_UP: readings.delta.version()})
    keep(lake)
    assert batches(lake) == {5, 6}


def test_what_is_written_together_before_it_is_rolled_up_is_not_deleted(lake: Path) -> None:
    ensure_table(lake, "rollup_1d").commit([], {ROLLED_UP: 2})
    readings = ensure_table(lake, "readings")
    settled = [
        row["path"]
        for row in files(readings).to_pylist()
        if row["max.arrived"].timestamp() * 1e6 < ARRIVED_US + 4 * HOUR_US
    ]
    readings.rewrite(compacted(lake, readings, settled), settled)
    keep(lake)
    assert batches(lake) == set(range(1, HOURS + 1))


def test_what_was_rolled_up_before_it_is_written_together_is_deleted(lake: Path) -> None:
    readings = ensure_table(lake, "readings")
    ensure_table(lake, "rollup_1d").commit([], {ROLLED_UP: readings.delta.version()})
    first = files(readings).sort_by("max.arrived")["path"].to_pylist()[:2]
    readings.rewrite(compacted(lake, readings, first), first)
    keep(lake)
    assert batches(lake) == {5, 6}


@pytest.mark.parametrize("sourced", [True, False])
def test_a_message_that_comes_where_an_old_one_stood_is_missed_for_itself(lake: Path, sourced: bool) -> None:
    """A store that was restored uses sequences again; messages that no source wrote have none."""
    nowhere = (
        {} if sourced else {"source_stream": None, "source_identity": None, "domain": None, "class": None}
    )
    old = direct_row(b"no", source_seq=2) | nowhere
    if not sourced:
        add_bronze(lake, arrived([old | {"stream": "TELEMETRY_1"}], 0))
        refine_all(lake)
        assert audited(lake)[0] is Exit.WELL
    keep(lake)
    new = direct_row(b"another", source_seq=2) | nowhere
    add_bronze(lake, arrived([new], HOURS))
    refine_all(lake)
    assert audited(lake)[0] is audited(lake, "--all")[0] is Exit.WELL
    for name in ("readings", "quarantine"):
        since = datetime.fromtimestamp((ARRIVED_US + HOURS * HOUR_US) / 1e6, UTC)
        DeltaTable(str(lake / name)).delete(f"arrived >= '{since.isoformat()}'")

    for options in ([], ["--all"]):
        assert audited(lake, *options)[0] is Exit.LOSS, options


def test_hours_of_what_is_deleted_are_not_rolled_up_again(lake: Path) -> None:
    version = ensure_table(lake, "readings").delta.version()
    keep(lake)
    readings = ensure_table(lake, "readings")

    assert rollup.touched(readings, version) == []
    first = datetime.fromtimestamp((readings.kept_since or 0) / 1e6, UTC)
    hours, older = rollup.kept(readings, rollup.touched(readings, None))
    assert (min(hours), older) == (first + timedelta(hours=1), 3)


def test_a_run_that_is_killed_between_the_tables_is_finished_by_the_next(lake: Path, tmp_path: Path) -> None:
    program = f"""{DRIVER}
whole = Table.expire
def expire(table, paths, since):
    if table.name == "readings":
        os.kill(os.getpid(), signal.SIGKILL)
    whole(table, paths, since)
Table.expire = expire
from hub_jobs.maintain.run import MaintainOptions, run
from pathlib import Path
run(MaintainOptions(Path({str(lake)!r}), None, 7.0, False, {AGES}))
"""
    killed(tmp_path / "driver.py", program)

    assert (len(batches(lake)), len(contents(lake, "quarantine", "seq"))) == (HOURS, 4)
    assert audited(lake)[0] is audited(lake, "--all")[0] is Exit.WELL
    keep(lake)
    assert batches(lake) == {5, 6}
    assert audited(lake)[0] is Exit.WELL


def test_what_is_deleted_stays_explained_when_less_is_to_be_deleted_later(tmp_path: Path) -> None:
    for hour in range(HOURS):
        add_bronze(tmp_path, arrived([batch_row(LINE, n=hour + 1, source_seq=hour + 1)], hour))
        refine_all(tmp_path)
    code = audited(tmp_path)[0]
    keep(tmp_path)
    late = {"stream": "TELEMETRY_1", "source_stream": "TEL_edge-1_bulk"}
    add_bronze(tmp_path, arrived([direct_row(b"1") | late], 0.5))
    refine_all(tmp_path)
    add_bronze(tmp_path, arrived([batch_row(LINE, n=HOURS + 1, source_seq=HOURS + 1)], HOURS + 3))
    refine_all(tmp_path)
    assert audited(tmp_path)[0] is code
    keep(tmp_path, 1 + (HOURS + 2) / 24)

    assert sorted(contents(tmp_path, "readings", "n")) == [5, 6, 7], "the late one is deleted, too"
    for options in ([], ["--all"]):
        now, said = audited(tmp_path, *options)
        assert (now, said["rows"][0]["missing"]) == (code, 0), options


def test_late_files_are_not_written_together_with_settled_ones(lake: Path) -> None:
    late = {"stream": "TELEMETRY_1", "source_stream": "TEL_edge-1_bulk"}
    for n in range(1, FEW):
        add_bronze(lake, arrived([direct_row(b"1", source_seq=n) | late], 0.5))
        refine_all(lake)

    readings = ensure_table(lake, "readings")
    assert len(expire.late_files(lake, readings)) == FEW - 1
    assert maintain.main(["--lake", str(lake)]) is Exit.WELL
    code, said = audited(lake)
    assert (code, said["settled"]["read_again"]) == (Exit.WELL, None)
