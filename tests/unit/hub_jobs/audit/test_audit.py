"""The whole audit of small lakes without Spark: what it calls pending, explained, missing or on its way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from agent.contract import Exit, Ledger, Previous, Readings, StreamState
from bench import lake as lakes
from hub_jobs.audit import all_accounts
from hub_jobs.audit.account import Account
from hub_jobs.audit.in_transit import InTransit
from hub_jobs.audit.ledgers import LedgerClaims, LostStores
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.delta import Table
from hub_jobs.tables.spaces import SeenNumbers
from tests.spark.lakes import add_bronze, audited, told
from tests.unit.hub_jobs.damage import flip
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import (
    LINE,
    OTHER_RUN,
    RUN,
    batch_headers,
    batch_row,
    direct_row,
    header_block,
    ledger_row,
)

SAID = Ledger(
    *("edge-1", "normal", RUN, 3, ((1, 3),)),
    Readings(accepted=30, stored=30),
    StreamState("now", 1, 4),
    final=True,
)


def fill(lake: Path, ledger: Ledger, *numbers: int, after: int = 0) -> None:
    """Batches of ten readings, and what their agent says, behind so many messages of its stream."""
    rows = [batch_row(LINE * 10, n=n) for n in numbers]
    rows.append(ledger_row(ledger))
    add_bronze(lake, [row | {"source_seq": seq} for seq, row in enumerate(rows, after + 1)])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake in order: three refined batches of ten readings, and the last record of their agent."""
    lake = tmp_path / "lake"
    fill(lake, SAID, 1, 2, 3)
    refine_all(lake)
    return lake


def test_what_is_not_refined_yet_is_pending_and_not_missing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, replace(SAID, final=False), 1, 2)
    refine_all(lake)
    fill(lake, SAID, 3, after=3)
    add_bronze(lake, [direct_row(b"1", source_seq=6)])

    code, runs, _ = told(lake)
    assert (code, runs[RUN]["in_readings"], runs[RUN]["pending"]) == (Exit.WELL, 20, 10)
    assert runs[None]["pending"] == 1
    assert (runs[RUN]["missing"], runs[RUN]["doubled"]) == (0, 0)


def test_what_was_called_discarded_and_arrived_explains_no_other_batch(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    named = replace(
        SAID, discarded=((2, 2, 10, "stream_full"),), readings=replace(SAID.readings, discarded=10)
    )
    fill(lake, named, 1, 2)
    refine_all(lake)

    code, runs, _ = told(lake)
    assert (code, runs[RUN]["missing"], runs[RUN]["discarded"]) == (Exit.LOSS, 10, 0)


def test_a_run_of_which_only_the_next_one_tells_has_an_account(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    before = Previous(OTHER_RUN, 4, Readings(accepted=45, stored=40), closed=False)
    fill(lake, replace(SAID, previous=before), 1, 2, 3)
    refine_all(lake)

    code, runs, _ = told(lake)
    assert (code, set(runs)) == (Exit.LOSS, {RUN, OTHER_RUN})
    assert (runs[OTHER_RUN]["missing"], runs[OTHER_RUN]["open_tail"]) == (40, 5)


@pytest.mark.parametrize(("run", "on_the_way"), [(OTHER_RUN, 10), (RUN, 0)])
def test_of_the_last_run_of_which_a_record_came_something_may_still_be_on_its_way(
    run: str, on_the_way: int
) -> None:
    """All of an earlier run stands before that record in the leaf's stream."""
    heard = LedgerClaims(
        {("edge-1", "normal", OTHER_RUN): replace(SAID, run=OTHER_RUN)}, {}, {}, {}, LostStores(), []
    )
    account = Account("edge-1", "normal", run, 30, 30, 30, 0, 30, 0, 0, 0, 0, 0, None)
    announced = Previous(run, 4, Readings(accepted=40, stored=40), closed=False)
    way = InTransit("edge-1", "normal", datetime.now(UTC), [(10, 11)], 1, 1, ledger=announced)

    assert all_accounts.announced_of(account, [way], heard, SeenNumbers()).on_the_way == on_the_way


def _said(lake: Path) -> tuple[Exit, dict[str, Any], str]:
    """The exit code, the account of the run, and all findings."""
    code, runs, findings = told(lake)
    return code, runs[RUN], findings


@pytest.mark.parametrize("forged_first", [False, True])
@pytest.mark.parametrize("forged", [1, 11])
def test_a_batch_that_came_twice_with_another_count_is_counted_by_its_payload(
    tmp_path: Path, forged: int, forged_first: bool
) -> None:
    """Whoever has the agent's key may send its batch again under any header; the first one is refined."""
    lake = tmp_path / "lake"
    fill(lake, SAID, 1, 2, 3)
    again = batch_row(LINE * 10, n=2, source_seq=5)
    again |= {"count": forged, "headers": header_block(batch_headers(2, forged))}
    if forged_first:
        refine_all(lake)
    add_bronze(lake, [again])
    refine_all(lake)

    code, run, findings = _said(lake)

    assert code == Exit.WELL, findings
    assert (run["in_bronze"], run["missing"], run["doubled"]) == (30, 0, 0)
    low, high = sorted((forged, 10))
    assert (
        f"batch 2: bronze says that it holds {low}, and in another copy {high} readings; its payload holds 10"
    ) in findings


def test_a_forged_count_that_came_first_leaves_the_batch_in_quarantine_and_no_loss(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    forged = batch_row(LINE * 10, n=2, source_seq=2)
    forged |= {"count": 11, "headers": header_block(batch_headers(2, 11))}
    add_bronze(lake, [forged])
    refine_all(lake)
    fill(lake, SAID, 1, 2, 3)
    refine_all(lake)

    code, run, findings = _said(lake)

    assert code == Exit.WELL, findings
    assert (run["in_bronze"], run["in_readings"], run["quarantined"], run["missing"]) == (30, 20, 10, 0)
    assert "batch 2: bronze says that it holds 10, and in another copy 11 readings" in findings


def test_a_batch_of_two_counts_whose_payload_was_dropped_is_no_loss_where_its_readings_are_all_there(
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    fill(lake, SAID, 1, 2, 3)
    add_bronze(lake, [batch_row(LINE * 10, n=2, source_seq=5) | {"count": 11}])
    refine_all(lake)
    assert maintain.main(["--lake", str(lake), "--thin-bronze-after", "0"]) == Exit.WELL

    code, run, findings = _said(lake)

    assert (code, run["in_bronze"], run["missing"]) == (Exit.WELL, 30, 0), findings
    assert "its payload was dropped" in findings


def test_no_batch_is_said_to_have_come_that_bronze_does_not_hold(lake: Path) -> None:
    """The cache knows all three of them still."""
    for table in ("bronze", "readings"):
        DeltaTable(str(lake / table)).delete("n = 2")

    code, run, findings = _said(lake)

    assert (code, run["missing"], run["in_readings"]) == (Exit.LOSS, 10, 20)
    assert "bronze held batches 2, and bronze no longer does" in findings
    assert "with them 10 readings or more are gone" in findings

    shutil.rmtree(lake / "seen")
    code, run, findings = _said(lake)
    assert (code, run["missing"]) == (Exit.LOSS, 10)
    assert "batches 2 were acknowledged as stored and never came, 10 readings or more" in findings


def test_what_is_in_readings_still_is_not_missing_when_its_message_is_gone_from_bronze(lake: Path) -> None:
    DeltaTable(str(lake / "bronze")).delete("n = 2")

    for _ in ("with the cache", "without"):
        code, run, findings = _said(lake)
        assert code == Exit.LOSS
        assert (run["missing"], run["in_readings"], run["unexplained"]) == (0, 30, 10)
        assert "10 rows of readings are of batches 2, whose messages are not in bronze" in findings
        assert "never came, 10 readings" not in findings
        shutil.rmtree(lake / "seen", ignore_errors=True)


def test_counts_that_are_too_low_in_bronze_are_not_called_batches_that_did_not_come(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, replace(SAID, readings=Readings(accepted=40, stored=40)), 1, 2, 3)
    refine_all(lake)

    code, run, findings = _said(lake)
    assert (code, run["missing"]) == (Exit.LOSS, 10)
    assert (
        "10 readings that were acknowledged as stored are missing, though all its batches are in bronze"
        in (findings)
    )


def test_all_other_findings_come_beside_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, replace(SAID, n=5, stored=((1, 5),), readings=Readings(accepted=50, stored=50)), 1, 2, 3)
    refine_all(lake)
    bad = next((lake / "readings").glob("*.parquet"))
    add_bronze(lake, [batch_row(LINE * 10, n=n, source_seq=n + 1) for n in (4, 5)])
    refine_all(lake)
    DeltaTable(str(lake / "readings")).delete("n = 5 AND index = 7")
    bad.unlink()

    code, run, findings = _said(lake)

    assert (code, run["missing"]) == (Exit.LOSS, 31)
    assert (
        f"readings: file {bad.name} can't be read: it is gone. By the table's log it holds 30 rows"
        in findings
    )
    assert f"run {RUN}, n 1 to 3" in findings
    assert (
        "3 batches, of which 30 readings are missing, may have them in files that can't be read" in findings
    )
    assert "batch 5: indexes 7 of 10 are missing from readings" in findings
    assert "batch 1: indexes" not in findings


def test_a_file_of_bronze_that_can_not_be_read_makes_no_reading_unexplained_by_anybody(lake: Path) -> None:
    flip(next((lake / "bronze").glob("*.parquet")), "source_seq")

    code, run, findings = _said(lake)

    assert (code, run["missing"], run["in_readings"]) == (Exit.LOSS, 0, 30)
    assert "sequences 1-4 are in a file of bronze that can't be read" in findings
    assert "30 rows of readings are of batches 1-3, whose messages are not in what can be read of bronze" in (
        findings
    )


@pytest.mark.parametrize(("moment", "time"), [("seen", 1), ("readings", 1), ("quarantine", 1), ("bronze", 2)])
def test_jobs_that_commit_while_the_tables_are_opened_make_nothing_missing_or_unexplained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, time: int
) -> None:
    """Each snapshot is of another moment: before one of them all is ingested, refined and maintained. (That
    there is bronze was looked up before.)"""
    lake = tmp_path / "lake"
    fill(lake, replace(SAID, final=False), 1, 2)
    refine_all(lake)
    opened = Table.__init__
    times: list[str] = []

    def open_late(self: Table, at: Path, name: str, delta: DeltaTable) -> None:
        opened(self, at, name, delta)
        times.append(name)
        if name == moment and times.count(name) == time:
            fill(lake, SAID, 3, after=3)
            refine_all(lake)
            assert maintain.main(["--lake", str(lake), "--thin-bronze-after", "0"]) == Exit.WELL
            self.delta.update_incremental()

    monkeypatch.setattr(Table, "__init__", open_late)
    code, run, findings = _said(lake)

    assert (code, run["missing"], run["doubled"], run["unexplained"]) == (Exit.WELL, 0, 0, 0), findings
    assert run["in_readings"] + run["pending"] == run["in_bronze"]


def test_one_lost_reading_among_many_is_named_by_batch_and_index(tmp_path: Path) -> None:
    lake, shape = tmp_path / "lake", lakes.Shape(100_250)
    lakes.make(lake, shape, processes=1)

    code, report = audited(lake)
    assert (code, sum(row["in_readings"] for row in report["rows"])) == (Exit.WELL, 100_250)

    sentence = lakes.lose(lake, shape, number=123, index=250)
    code, report = audited(lake)
    assert (code, report["findings"]) == (Exit.LOSS, [sentence])
    assert sum(row["missing"] for row in report["rows"]) == 1
