"""What keeps the tables small changes no row, whoever else writes meanwhile."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import Exit, ledger_subject
from hub_jobs.audit import run as audit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables import commits, delta, seen, stream_history
from hub_jobs.tables.compaction import FEW, Small, groups, rewrite, small_files
from hub_jobs.tables.delta import ConflictError, ensure_table, open_table
from hub_jobs.tables.scan import files, rows
from tests.spark.lakes import add_bronze, commit, contents
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, batch_row, row

TARGET = 1_000
LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
smalls = st.lists(
    st.builds(
        Small,
        st.sampled_from([("a",), ("b",)]),
        st.integers(0, 50),
        st.uuids().map(str),
        st.integers(1, 2 * TARGET),
    ),
    max_size=40,
    unique_by=lambda file: file.path,
)


@given(smalls)
def test_neighbours_of_a_kind_are_written_together_and_nothing_large(held: list[Small]) -> None:
    found = groups(held, TARGET)
    taken = [file for group in found for file in group]
    assert len(set(taken)) == len(taken)
    assert all(file.size < TARGET // 2 for file in taken)
    for group in found:
        assert len(group) > 1
        assert len({file.key for file in group}) == 1
        assert group == sorted(group)
        size = sum(file.size for file in group)
        assert TARGET // 2 <= size <= TARGET or len(group) >= FEW
        between = [
            file
            for file in held
            if file.key == group[0].key and group[0] < file < group[-1] and file.size < TARGET // 2
        ]
        assert set(between) <= set(group), "a file between them belongs to them"


@given(smalls)
def test_what_was_written_together_is_left_alone_or_waits_for_many(held: list[Small]) -> None:
    after = [file for file in held if not any(file in group for group in groups(held, TARGET))]
    after += [
        Small(group[0].key, group[0].place, group[0].path, sum(file.size for file in group))
        for group in groups(held, TARGET)
    ]
    assert all(len(group) < len(held) for group in groups(after, TARGET))


@given(smalls, st.data())
def test_where_nothing_is_written_together_it_is_not_without_some_files_either(
    held: list[Small], data: st.DataObject
) -> None:
    """So a pass with nothing to do does not ask which files hold late rows."""
    alone = [file for file in held if not any(file in group for group in groups(held, TARGET))]
    some = data.draw(st.sets(st.sampled_from(alone))) if alone else set()
    if not groups(alone, TARGET):
        assert not groups([file for file in alone if file not in some], TARGET)


def batches(first: int, count: int, **given: Any) -> list[dict[str, Any]]:
    return [batch_row(LINE, n, source_seq=n, **given) for n in range(first, first + count)]


def filled(lake: Path, parts: int = 12, **given: Any) -> None:
    for number in range(parts):
        add_bronze(lake, batches(10 * number + 1, 10, **given))


def paths(lake: Path, name: str = "bronze") -> list[str]:
    table = open_table(lake, name)
    assert table is not None
    return sorted(files(table)["path"].to_pylist())


def maintained(lake: Path, *arguments: str) -> Exit:
    return maintain.main(["--lake", str(lake), *arguments])


def test_many_small_files_become_one_with_the_same_rows_and_offsets(tmp_path: Path) -> None:
    filled(tmp_path)
    other = {"stream": "TELEMETRY_1", "arrived": ARRIVED_US - 5}
    for number in range(FEW):
        add_bronze(tmp_path, batches(1_000 + number, 1, **other))
    before = contents(tmp_path, "bronze")
    known = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    ranges = seen.load(tmp_path, ensure_table(tmp_path, "bronze"), known).numbers().spaces
    assert maintained(tmp_path, "--dry-run") is Exit.WELL
    assert len(paths(tmp_path)) == 12 + FEW
    assert maintained(tmp_path) is Exit.WELL
    assert len(paths(tmp_path)) == 2, "one for each stream"
    assert contents(tmp_path, "bronze") == before
    bronze = ensure_table(tmp_path, "bronze")
    assert stream_history.all_of(bronze) == known
    assert seen.load(tmp_path, bronze, known).numbers().spaces == ranges
    kept = paths(tmp_path)
    assert maintained(tmp_path) is Exit.WELL
    assert paths(tmp_path) == kept, "there is nothing left to do"
    add_bronze(tmp_path, batches(121, 3))
    assert len(contents(tmp_path, "bronze")) == len(before) + 3


def test_a_pass_with_nothing_to_do_reads_the_log_of_a_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, parts=1)
    refine_all(tmp_path)
    opened = Counter[str]()

    def counted(path: str, **given: Any) -> DeltaTable:
        opened[Path(path).name] += 1
        return DeltaTable(path, **given)

    monkeypatch.setattr(delta, "DeltaTable", counted)
    assert maintained(tmp_path) is Exit.WELL
    assert {opened[name] for name in ("bronze", "readings", "quarantine", "seen")} == {1}


def test_readings_that_are_written_together_are_sorted_by_series_and_time(tmp_path: Path) -> None:
    line = b'{"ts":%d,"device":"d%d","metric":"m%d","value":1}\n'
    for n in range(1, FEW + 1):
        lines = b"".join(line % (100 - n, device, device % 2) for device in (3, 1, 2))
        add_bronze(tmp_path, [batch_row(lines, n=n, source_seq=n)])
        refine_all(tmp_path)
    before = contents(tmp_path, "readings")
    assert maintained(tmp_path) is Exit.WELL
    assert contents(tmp_path, "readings") == before

    table = rows(ensure_table(tmp_path, "readings"), ["device", "metric", "ts"])
    held = [tuple(row.values()) for row in table.to_pylist()]
    assert held == sorted(held)
    assert audit.main(["--lake", str(tmp_path)]) is Exit.WELL


def test_rows_that_are_added_meanwhile_are_not_lost_and_of_two_rewrites_one_wins(tmp_path: Path) -> None:
    filled(tmp_path)
    first, second = ensure_table(tmp_path, "bronze"), ensure_table(tmp_path, "bronze")
    (group,) = groups(small_files(first))
    chosen = [file.path for file in group]
    written = [rewrite(tmp_path, table, chosen) for table in (first, second)]
    add_bronze(tmp_path, batches(121, 5))
    first.rewrite(written[0], chosen)
    with pytest.raises(ConflictError):
        second.rewrite(written[1], chosen)
    assert contents(tmp_path, "bronze", "n") == sorted(range(1, 126), key=str)
    assert not any((tmp_path / "bronze" / file.path).exists() for file in written[1])


def aged(lake: Path, names: Sequence[str], days: float, table: str = "bronze") -> None:
    then = time.time() - days * 86_400
    for name in names:
        os.utime(lake / table / name, (then, then))


def test_only_what_no_table_names_and_no_job_can_need_is_deleted(tmp_path: Path) -> None:
    filled(tmp_path, arrived=time.time_ns() // 1000)
    small = paths(tmp_path)
    assert maintained(tmp_path) is Exit.WELL
    assert all((tmp_path / "bronze" / name).exists() for name in small), "a reader may still be on them"
    bronze = ensure_table(tmp_path, "bronze")
    (old,) = rewrite(tmp_path, bronze, paths(tmp_path))
    (running,) = rewrite(tmp_path, bronze, paths(tmp_path))
    aged(tmp_path, [old.path, *paths(tmp_path)], days=8)
    assert maintained(tmp_path) is Exit.WELL
    assert not (tmp_path / "bronze" / old.path).exists()
    assert (tmp_path / "bronze" / running.path).exists()
    assert len(contents(tmp_path, "bronze")) == 120


def test_by_a_clock_that_is_far_ahead_no_file_of_a_running_job_is_deleted(tmp_path: Path) -> None:
    add_bronze(tmp_path, batches(1, 10, arrived=time.time_ns() // 1000 - 30 * 86_400_000_000))
    (running,) = rewrite(tmp_path, ensure_table(tmp_path, "bronze"), paths(tmp_path))
    aged(tmp_path, [running.path], days=30)

    assert maintained(tmp_path) is Exit.WELL

    assert (tmp_path / "bronze" / running.path).exists()


def test_what_the_vacuum_took_of_a_running_job_is_not_committed(tmp_path: Path) -> None:
    """The clock was at 1970 while the job wrote, and is set before it commits."""
    filled(tmp_path, arrived=time.time_ns() // 1000)
    bronze = ensure_table(tmp_path, "bronze")
    written = rewrite(tmp_path, bronze, paths(tmp_path)[:2])
    aged(tmp_path, [written[0].path], days=time.time() / 86_400)
    assert maintained(tmp_path) is Exit.WELL
    (history,) = stream_history.all_of(bronze)

    with pytest.raises(ConflictError, match="was deleted before its commit"):
        bronze.commit(written, {history.ingested: 140})

    assert len(contents(tmp_path, "bronze")) == 120
    assert ensure_table(tmp_path, "bronze").offset(history.ingested) == 120


@pytest.mark.parametrize("first", [True, False])
def test_what_the_vacuum_took_during_a_commit_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The job is stopped for days after its look at its files."""
    now = time.time_ns() // 1000
    add_bronze(tmp_path, batches(1, 10, arrived=now))
    if not first:
        refine_all(tmp_path)
        add_bronze(tmp_path, batches(11, 10, arrived=now))
    attempt = commits.attempt
    others: list[commits.Attempt] = []

    def meanwhile(path: Path, snapshot: DeltaTable, change: commits.TableChange) -> commits.Attempt:
        if change.replaced:
            monkeypatch.setattr(commits, "attempt", attempt)
            other = commits.TableChange([], "append", {"of another writer": 1}, {})
            others.append(attempt(path, ensure_table(tmp_path, path.name).delta, other))
        return attempt(path, snapshot, change)

    def stopped(path: Path, *rest: Any) -> commits.Attempt:
        if path.name == "readings":
            monkeypatch.setattr(commits, "attempt", attempt)
            aged(tmp_path, [file.name for file in path.glob("*.parquet")], 30, path.name)
            assert maintained(tmp_path) is Exit.WELL
            monkeypatch.setattr(commits, "attempt", meanwhile)
        return attempt(path, *rest)

    synced: list[Path] = []
    monkeypatch.setattr(commits, "attempt", stopped)
    monkeypatch.setattr(commits, "sync", synced.append)
    with pytest.raises(ConflictError, match="was deleted before its commit"):
        refine_all(tmp_path)
    assert others == [commits.Attempt(commits.CommitOutcome.COMMITTED)]
    (history,) = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    readings = ensure_table(tmp_path, "readings")
    assert readings.offset(history.refined) == (None if first else 10)
    entry = commits.entry_name(readings.delta.version())
    assert readings.path / "_delta_log" / entry in synced, "a power cut does not bring the commit back"
    refine_all(tmp_path)
    assert sorted(contents(tmp_path, "readings", "n")) == list(range(1, 11 if first else 21))


def test_payloads_that_are_old_and_refined_are_dropped_and_what_a_row_is_stays(tmp_path: Path) -> None:
    now, day = time.time_ns() // 1000, 86_400_000_000
    old = {"arrived": now - 10 * day}
    ledger = row(b"{}", ledger_subject("edge-1", "normal"), {}, source_seq=100, **old)
    add_bronze(tmp_path, [*batches(1, 10, **old), ledger])
    for first, ago in ((11, 8), (16, 6), (21, 3), (26, 1)):
        add_bronze(tmp_path, batches(first, 5, arrived=now - ago * day))
    (history,) = stream_history.all_of(ensure_table(tmp_path, "bronze"))
    ensure_table(tmp_path, "readings").commit([], {history.refined: 11})
    identities = contents(tmp_path, "bronze", "seq", "n", "source_seq", "digest", "headers", "message_id")

    def with_payload() -> list[int]:
        return [seq for seq, payload in contents(tmp_path, "bronze", "seq", "payload") if payload is not None]

    assert maintained(tmp_path, "--thin-bronze-after", "5", "--dry-run") is Exit.WELL
    assert len(with_payload()) == 31
    assert maintained(tmp_path, "--thin-bronze-after", "5") is Exit.WELL
    assert sorted(with_payload()) == list(range(11, 32)), "the ledger record, and what is not refined"
    ensure_table(tmp_path, "readings").commit([], {history.refined: 31})
    assert maintained(tmp_path, "--thin-bronze-after", "5") is Exit.WELL
    assert sorted(with_payload()) == [11, *range(22, 32)], "and what is too young"
    assert (
        contents(tmp_path, "bronze", "seq", "n", "source_seq", "digest", "headers", "message_id")
        == identities
    )
    assert ensure_table(tmp_path, "bronze").offset(history.thinned) == 21


def test_what_came_of_payloads_is_on_disk_before_they_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of refine may have been killed between its commit and the sync."""
    filled(tmp_path, parts=1)
    refine_all(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(commits, "sync", synced.append)
    assert maintained(tmp_path, "--thin-bronze-after", "0") is Exit.WELL

    at = {
        name: synced.index(tmp_path / name / "_delta_log" / commits.entry_name(version))
        for name, version in (("readings", 1), ("quarantine", 1), ("bronze", 2))
    }
    assert max(at["readings"], at["quarantine"]) < at["bronze"]


def test_what_would_harm_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert maintained(tmp_path) is Exit.USAGE
    for arguments in (["--vacuum-after", "0.5"], ["--thin-bronze-after", "-1"]):
        with pytest.raises(SystemExit):
            maintained(tmp_path, *arguments)
    said = capsys.readouterr().err
    assert "a job that still runs would lose its files" in said
    assert f"there is no table {tmp_path / 'bronze'}" in said


def test_looks_for_gaps_four_times_a_day_become_few_files(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    for number in range(FEW):
        found = {"at": moment + timedelta(hours=6 * number), "kind": "series", "domain": "edge-1"}
        commit(tmp_path, "gaps", [found])
    before = contents(tmp_path, "gaps")
    assert maintained(tmp_path) is Exit.WELL
    table = ensure_table(tmp_path, "gaps")
    assert len(table.delta.file_uris()) == 1
    assert contents(tmp_path, "gaps") == before
