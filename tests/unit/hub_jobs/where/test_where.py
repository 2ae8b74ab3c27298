"""What the tables tell of one domain, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from agent.contract import Clock, Exit, Letter, Previous, Readings, WaitingLedger, WaitingMessage
from hub_jobs.tables.delta import TableError
from hub_jobs.where import (
    DomainFindings,
    ScanPart,
    Sums,
    Waiting,
    look,
    open_lake,
)
from hub_jobs.where import device as device_module
from tests.spark.lakes import add_bronze, audited, replaced
from tests.unit.hub_jobs.damage import flip
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

PUMP = b'{"device":"pump-7","metric":"m","value":1}\n'
HOUR_NS = 3_600 * 10**9


def sealed_at(row: dict[str, Any], hours: int) -> dict[str, Any]:
    """A batch that was sealed so many hours later, by a clock that was synchronised."""
    moment = SEALED_NS + hours * HOUR_NS
    headers = batch_headers(row["n"], row["count"], sealed=(moment, Clock(True, "boot", 1)))
    return row | {"headers": header_block(headers), "arrived": moment // 1000 + 1_000_000}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with four batches of ten readings, one of them bad, a direct message and a final ledger."""
    where = tmp_path / "lake"
    bad = batch_row(LINE * 9 + b'{"device":"pump-7"}\n', n=4, source_seq=4)
    given = [
        *numbered(1, 2),
        *numbered(3, text=LINE * 7 + PUMP * 3),
        bad,
        direct_row(b"21.5", source_seq=5),
        ledger_row(LEDGER, source_seq=6),
        {**batch_row(LINE, n=1), "domain": "edge-2"},
    ]
    add_bronze(where, given)
    return where


def found_in(
    lake: Path, waiting: Waiting | None = None, device: str | None = None, **span: int
) -> DomainFindings:
    return look(open_lake(lake), ScanPart("edge-1", **span), waiting or Waiting(), device)


def shown(sums: Sums) -> dict[str, int | None]:
    """Without what is 0."""
    return {name: value for name, value in asdict(sums).items() if value != 0}


def swapped(n: int, *, lost: int, doubled: int) -> Callable[[pa.Table], pa.Table]:
    """A reading of a batch is lost, and another is there twice."""

    def swap(table: pa.Table) -> pa.Table:
        mine = pc.fill_null(pc.equal(table["n"], n), False)
        gone, again = (pc.and_(mine, pc.equal(table["index"], index)) for index in (lost, doubled))
        return pa.concat_tables([table.filter(pc.invert(gone)), table.filter(again)])

    return swap


def test_a_domain_in_order_is_accounted_for(lake: Path) -> None:
    refine_all(lake)

    found = found_in(lake)

    assert shown(found.classes["normal"]) == {
        "accepted": 41,
        "stored": 41,
        "at_hub": 41,
        "in_bronze": 41,
        "in_readings": 40,
        "quarantined": 1,
    }
    assert (found.lost, found.reasons) == ([], {"bad line": 1})
    assert [(key, account.stored) for key, account in found.accounts.items()] == [(("normal", RUN), 40)]


def test_what_is_not_refined_is_pending_also_without_the_other_tables(lake: Path) -> None:
    sums = found_in(lake).classes["normal"]

    assert (sums.in_bronze, sums.pending, sums.in_readings, sums.missing) == (41, 41, 0, 0)


def test_what_waits_at_the_hub_is_counted_once_and_tells_of_a_newer_ledger(lake: Path) -> None:
    said = replace(LEDGER, n=7, stored=((1, 7),), readings=Readings(accepted=75, stored=70, refused=5))
    batches = [WaitingMessage("normal", RUN, n, 10, False, 0) for n in (4, 5, 5, 6)]
    waiting = Waiting(
        [*batches, WaitingMessage("normal", None, None, 1, False, 0)],
        [WaitingLedger("normal", "TELEMETRY_0", 99, said.encode())],
    )

    found = found_in(lake, waiting)
    sums = found.classes["normal"]

    assert (sums.at_hub, sums.in_bronze, sums.waiting) == (62, 41, 21)
    assert (sums.accepted, sums.stored, sums.refused, sums.never_came) == (77, 72, 5, 10)
    assert "batches 7 were acknowledged as stored and never came" in "\n".join(found.lost)


def test_one_lost_and_one_doubled_reading_are_named(lake: Path) -> None:
    refine_all(lake)

    replaced(lake, "readings", swapped(2, lost=7, doubled=6))

    found = found_in(lake)

    assert (found.classes["normal"].missing, found.classes["normal"].doubled) == (1, 1)
    (told,) = found.lost
    assert told.startswith(f"edge-1, class normal, run {RUN}, batch 2: indexes 7 of 10 are missing")
    assert told.endswith("; indexes 6 are in readings more than once")


def test_a_lost_direct_message_is_named(lake: Path) -> None:
    refine_all(lake)
    replaced(lake, "readings", lambda all_: all_.filter(pc.is_valid(all_["n"])))

    found = found_in(lake)

    assert found.classes["normal"].missing == 1
    assert found.lost == ["edge-1: message 5 of TEL_edge-1_normal (abc) is missing from readings"]


def test_what_no_message_proves_is_told_from_what_is_in_a_file_that_can_not_be_read(lake: Path) -> None:
    refine_all(lake)
    flip(next((lake / "bronze").glob("*.parquet")), "source_seq")

    lost = "\n".join(found_in(lake).lost)

    assert "of batches 1-4, whose messages are not in what can be read of bronze" in lost


def test_a_sequence_of_the_leaf_that_the_hub_never_had_is_a_loss(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    add_bronze(lake, [*numbered(1, 2), *numbered(4), ledger_row(LEDGER, source_seq=5)])
    refine_all(lake)

    lost = "\n".join(found_in(lake).lost)

    assert "batches 3 were acknowledged as stored and never came" in lost
    assert "source TEL_edge-1_normal/abc: sequences 3 never came: not sourced" in lost


def test_dead_letters_discards_and_open_tails_are_no_losses(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    letter = Letter(b"21,5", "/var/log/x:17", "not JSON").encode() + b"\n"
    said = replace(
        LEDGER,
        n=5,
        readings=Readings(accepted=42, stored=40, discarded=20, dead=2),
        discarded=((2, 3, 20, "stream_full"),),
        gone=((2, 3, 0, "stream_full"),),
    )
    previous = Previous(OTHER_RUN, 1, Readings(accepted=9, stored=4), closed=False)
    add_bronze(
        lake,
        [
            *numbered(1, 4),
            dead_row(letter * 2, n=5) | {"source_seq": 5},
            ledger_row(replace(said, previous=previous), source_seq=6),
            batch_row(LINE * 4, n=1, run=OTHER_RUN, source_seq=7),
        ],
    )
    refine_all(lake)

    found = found_in(lake)
    sums = shown(found.classes["normal"])

    assert found.lost == []
    assert (sums["dead"], sums["discarded"], sums["open_tail"]) == (2, 20, 5)
    assert "stream_full" in "\n".join(found.explained)


def test_a_span_of_time_counts_what_was_sealed_in_it(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    given = [sealed_at(row, hours) for hours, row in enumerate(numbered(1, 2, 4))]
    add_bronze(lake, [*given, ledger_row(LEDGER, source_seq=9)])
    refine_all(lake)
    second = (SEALED_NS + HOUR_NS) // 1000

    found = found_in(lake, since=second - 1, until=second + 1)
    before = found_in(lake, until=second)

    assert shown(found.classes["normal"]) == {
        "accepted": None,
        "refused": None,
        "open_tail": None,
        "stored": 11,
        "at_hub": 10,
        "in_bronze": 10,
        "in_readings": 10,
        "never_came": 1,
    }
    assert "batches 3 of about then" in found.lost[0]
    assert (before.classes["normal"].in_bronze, before.lost) == (10, [])


def test_the_readings_of_a_device_are_found_in_each_table(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_in(lake, device="pump-7").device == device_module.DeviceCounts(in_bronze=3, pending=3)
    refine_all(lake)
    found = found_in(lake, device="pump-7").device
    assert found is not None
    assert (found.in_bronze, found.in_readings, found.quarantined, found.missing) == (3, 3, 1, 0)
    assert found_in(lake, device="pump").device == device_module.DeviceCounts(in_bronze=1, in_readings=1)

    replaced(lake, "readings", lambda all_: all_.filter(pc.not_equal(all_["device"], "pump-7")))
    found = found_in(lake, device="pump-7").device
    assert found is not None
    assert (found.in_readings, found.missing) == (0, 3)
    monkeypatch.setattr(device_module, "MOST", 10)
    found = found_in(lake, device="pump-7").device
    assert found is not None
    assert found.cut


def test_a_ledger_that_cannot_be_used_is_told(lake: Path) -> None:
    broken = row(b'{"v": 1}', "tel.edge-1.normal._ledger", {}, source_seq=7)
    foreign = ledger_row(replace(LEDGER, domain="edge-2"), source_seq=8, domain="edge-1")
    add_bronze(lake, [broken, foreign])

    assert ["can't be used" in sentence for sentence in found_in(lake).explained] == [True, True]


def test_tables_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no table"):
        open_lake(tmp_path)


def test_both_count_the_same(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    letters = Letter(b"21,5", "/var/log/x:17", "not JSON").encode() + b"\n"
    said = replace(
        LEDGER,
        n=10,
        stored=((1, 10),),
        readings=Readings(accepted=107, stored=98, discarded=10, dead=2, refused=5),
        discarded=((7, 7, 10, "stream_full"),),
        gone=((7, 7, 0, "stream_full"),),
    )
    previous = Previous(OTHER_RUN, 2, Readings(accepted=30, stored=20), closed=False)
    repeated = batch_row(LINE * 10, n=1, source_seq=12)
    other_content = batch_row(LINE * 3, n=2, source_seq=13)
    whole_in_quarantine = batch_row(LINE * 3, n=1, count=4, run=OTHER_RUN, source_seq=11)
    add_bronze(
        lake,
        [
            *numbered(1, 2, 3),
            batch_row(LINE * 9 + b"bad\n", n=4, source_seq=4),
            dead_row(letters * 2, n=5) | {"source_seq": 5},
            *numbered(6, 8),
            ledger_row(replace(said, previous=previous), source_seq=9),
            direct_row(b"21.5", source_seq=10),
            direct_row(b"nothing", source_seq=14),
            whole_in_quarantine,
            repeated,
            other_content,
            {**batch_row(LINE, n=1), "domain": "edge-2"},
        ],
    )
    refine_all(lake)

    replaced(lake, "readings", swapped(6, lost=7, doubled=3))
    add_bronze(lake, numbered(9))
    code, report = audited(lake)
    assert code == Exit.LOSS
    accounts = [row for row in report["rows"] if row["domain"] == "edge-1"]

    found = look(open_lake(lake), ScanPart("edge-1"), Waiting())
    sums = found.classes["normal"]

    counted = "accepted stored in_bronze pending in_readings quarantined doubled discarded refused dead"
    same = counted.split()
    assert {name: getattr(sums, name) for name in same} == {
        name: sum(row[name] for row in accounts) for name in same
    }
    assert sums.missing + sums.never_came == sum(row["missing"] for row in accounts)
    assert sums.open_tail == sum(row["open_tail"] or 0 for row in accounts)
    assert found.lost
    assert sums.never_came > 0, "batch 10"
