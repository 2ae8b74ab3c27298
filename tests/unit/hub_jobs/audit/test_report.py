"""What an audit says of a lake, hour by hour and run by run, and of ledgers and lakes that are no use."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from agent.contract import H_CLOCK, Clock, Exit, Letter, Readings
from hub_jobs.audit import run as audit
from hub_jobs.tables.delta import ensure_table
from tests.spark.lakes import add_bronze, contents, replaced, told
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import (
    LEDGER,
    LINE,
    OTHER_RUN,
    RUN,
    SEALED_NS,
    batch_headers,
    batch_row,
    dead_row,
    direct_row,
    header_block,
    ledger_row,
    numbered,
    row,
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with four batches of ten readings, one of them bad, a direct message, and a final ledger."""
    where = tmp_path / "lake"
    given = [
        *numbered(1, 2, 3),
        batch_row(LINE * 9 + b"bad\n", n=4, source_seq=4),
        direct_row(b"21.5", source_seq=5),
        ledger_row(replace(LEDGER, final=False, n=2, stored=((1, 2),)), source_seq=6),
        ledger_row(LEDGER, source_seq=7),
    ]
    add_bronze(where, given)
    return where


def _audit(lake: Path) -> tuple[Exit, dict[str | None, dict[str, Any]], str]:
    """The exit code, the rows by run, and all findings."""
    refine_all(lake)
    return told(lake)


def test_a_lake_in_order_is_shown_in_full_and_exits_well(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, findings = _audit(lake)

    assert (code, findings) == (Exit.WELL, "")
    assert found[RUN] == {
        "domain": "edge-1",
        "class": "normal",
        "run": RUN,
        "accepted": 40,
        "stored": 40,
        "in_bronze": 40,
        "pending": 0,
        "in_readings": 39,
        "quarantined": 1,
        "missing": 0,
        "doubled": 0,
        "discarded": 0,
        "refused": 0,
        "open_tail": None,
        "findings": [],
        "dead": 0,
        "on_the_way": None,
        "unexplained": 0,
    }
    assert (found[None]["in_bronze"], found[None]["in_readings"]) == (1, 1)
    assert capsys.readouterr().out.startswith("nothing is missing, nothing is doubled\n")
    assert contents(lake, "audit", "domain", "run", "missing") == [
        ("edge-1", RUN, 0),
        ("edge-1", None, 0),
    ]


def test_dead_letters_are_named_and_explained_and_one_that_is_not_refined_is_missed(lake: Path) -> None:
    letter = Letter(b"21,5", "/var/log/x:17", "not JSON").encode() + b"\n"
    said = replace(LEDGER, n=5, stored=((1, 5),), readings=Readings(accepted=43, stored=40, dead=3))
    add_bronze(lake, [dead_row(letter * 3, n=5) | {"source_seq": 8}, ledger_row(said, source_seq=9)])

    code, found, findings = _audit(lake)

    assert (code, findings) == (Exit.WELL, "")
    shown = ("accepted", "stored", "in_bronze", "in_readings", "quarantined", "dead", "open_tail", "missing")
    assert [found[RUN][name] for name in shown] == [43, 40, 40, 39, 1, 3, None, 0]
    assert contents(lake, "quarantine", "n", "line", "reason", "place") == [
        (4, 9, "bad line", None),
        *((5, line, "dead letter", "/var/log/x:17") for line in range(3)),
    ]

    replaced(lake, "quarantine", lambda held: held.filter(pc.field("n") == 4))
    code, found, findings = told(lake)
    assert (code, found[RUN]["missing"]) == (Exit.LOSS, 3)
    assert "batch 5" in findings


def test_repeats_other_content_and_whole_batches_in_quarantine_add_up(lake: Path) -> None:
    add_bronze(
        lake,
        [
            *numbered(1, 2),
            batch_row(LINE * 3, n=3, source_seq=8),
            batch_row(LINE * 3, n=1, count=4, run=OTHER_RUN, source_seq=9),
            direct_row(b"no", source_seq=10),
            row(LINE, "tel.edge-2.normal._batch.http", {}, source_seq=11, **{"class": None}),
        ],
    )

    code, found, _ = _audit(lake)

    assert code == Exit.WELL
    assert (found[RUN]["in_bronze"], found[RUN]["in_readings"], found[RUN]["quarantined"]) == (40, 39, 1)
    assert (found[OTHER_RUN]["in_readings"], found[OTHER_RUN]["quarantined"]) == (0, 4)


def test_a_ledger_that_can_not_be_used_is_named_and_the_last_good_one_counts(lake: Path) -> None:
    newer = LEDGER.encode().replace(b'"n":4', b'"n":9').replace(b'"stored":[[1,4]]', b'"stored":"all"')
    foreign = replace(LEDGER, domain="edge-2").encode()
    add_bronze(
        lake,
        [
            row(body, "tel.edge-1.normal._ledger", {}, source_seq=at)
            for at, body in enumerate((newer, b"\xff{", foreign), 8)
        ],
    )

    code, found, findings = _audit(lake)

    assert code == Exit.WELL
    assert (found[RUN]["stored"], found[RUN]["missing"], found[RUN]["open_tail"]) == (40, 0, None)
    named = "edge-1, class normal: the ledger record at hub sequence {} of TELEMETRY_0 can't be used: "
    lines = findings.splitlines()
    assert [line.startswith(named.format(seq)) for line, seq in zip(lines, (8, 9, 10), strict=True)] == [
        True
    ] * 3
    assert lines[2].endswith("it speaks for edge-2, class normal")


def test_a_lake_that_is_not_there_or_has_no_bronze_is_wrong_usage_and_not_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "audit.json"
    (tmp_path / "empty").mkdir()

    for name in ("none", "empty"):
        assert audit.main(["--lake", str(tmp_path / name), "--json", str(report)]) == Exit.USAGE

        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"audit: there is no table {tmp_path / name / 'bronze'}: mount the disk")
        assert len(said.err.splitlines()) == 1
    assert not report.exists()
    assert not (tmp_path / "none").exists()


def test_a_bronze_that_holds_nothing_yet_is_in_order(tmp_path: Path) -> None:
    ensure_table(tmp_path, "bronze")

    assert audit.main(["--lake", str(tmp_path)]) == Exit.WELL


def test_each_hour_says_what_became_of_its_readings_and_the_page_shows_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    sealed_us = SEALED_NS // 1000
    soon, after = sealed_us + 1_000_000, sealed_us + 2 * 3_600_000_000
    unsynchronised = {**batch_headers(5, 10), H_CLOCK: str(Clock(False, "boot", 1))}
    add_bronze(
        lake,
        [
            batch_row(LINE * 10, n=1, source_seq=1, arrived=soon),
            batch_row(LINE * 10, n=2, source_seq=2, arrived=after),
            batch_row(LINE * 10, n=4, source_seq=4, arrived=after),
            batch_row(LINE * 10, n=5, source_seq=5, arrived=after)
            | {"headers": header_block(unsynchronised)},
            direct_row(b"21.5", source_seq=6, arrived=after),
            batch_row(LINE * 10, n=1, source_seq=1, domain="<b>edge-2", arrived=soon),
            ledger_row(replace(LEDGER, n=5, stored=((1, 5),)), source_seq=7, arrived=after),
        ],
    )
    refine_all(lake)
    page = tmp_path / "audit.html"
    report = tmp_path / "audit.json"
    assert audit.main(["--lake", str(lake), "--html", str(page), "--json", str(report)]) == Exit.LOSS

    hour = datetime.fromtimestamp(sealed_us // 3_600_000_000 * 3600, UTC)
    found = {(row["domain"], row["hour"]): row for row in json.loads(report.read_text())["hours"]}
    first = found["edge-1", hour.isoformat()]
    assert (first["in_bronze"], first["late"], first["lost"], first["state"]) == (30, 20, 1, "missing")
    later = found["edge-1", (hour + timedelta(hours=2)).isoformat()]
    assert (later["in_bronze"], later["in_readings"], later["state"]) == (11, 11, "complete"), (
        "a clock that is not synchronised says nothing of when; a device's message neither"
    )
    foreign = found["<b>edge-2", hour.isoformat()]
    assert (foreign["quarantined"], foreign["in_readings"], foreign["state"]) == (10, 0, "complete")
    assert contents(lake, "audit_hours", "domain", "state")
    shown = page.read_text()
    assert "<b>edge-2" not in shown
    assert "&lt;b&gt;edge-2" in shown
    assert "30 of 30 readings in the table, 20 late, 1 batches never came" in shown
    assert '<p class="verdict lost">1 readings missing, 0 doubled' in shown
