"""Contents beside payloads: what only came twice, was corrected or dropped is no difference."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from agent.contract import Clock, Exit
from hub_jobs.audit import file_sums
from hub_jobs.audit.rows import scan
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.maintain import run as maintain
from hub_jobs.refine.clocks import with_errors
from hub_jobs.refine.readings import Refiner
from hub_jobs.tables.delta import ensure_table
from tests.spark.lakes import add_bronze, audited
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, batch_headers, batch_row, direct_row, header_block

SECRET = b"0" * 16
LINES = (
    b'{"metric":"m","value":1,"tags":{"b":"2","a":"1"}}\n'
    b'{"ts":"2026-11-21T00:00:00-00:00","device":"pump","metric":"m","value":true}\n'
    b'{"ts":0.5,"metric":"","value":"\xc3\xa9"}\n'
    b'{"ts":1,"metric":"x","value":"\xc3\xa9"}\n'
)


def _decoded(text: bytes = LINES) -> pa.Table:
    refiner = Refiner()
    refiner.add(batch_row(text))
    return refiner.drain()


def test_a_reading_has_one_number_however_its_row_is_stored() -> None:
    rows = _decoded()
    whole = file_sums.of_readings(rows, SECRET)

    assert np.unique(whole).size == rows.num_rows == 3
    again = pa.concat_tables([rows.slice(1), rows.slice(0, 1)]).combine_chunks()
    assert sorted(file_sums.of_readings(again, SECRET).tolist()) == sorted(whole.tolist())
    assert not np.isin(file_sums.of_readings(rows, b"1" * 16), whole).any()


def test_what_the_driver_is_sent_of_a_file_grows_with_its_messages_alone(tmp_path: Path) -> None:
    sizes = []
    for count in (1_000, 4_000):
        lake = tmp_path / str(count)
        add_bronze(lake, [direct_row(b"21.5", source_seq=at) for at in range(count)])
        bronze = ensure_table(lake, "bronze")
        (piece,) = AuditTables(bronze, None, None, {}).pieces(bronze)
        sizes.append(len(pickle.dumps(file_sums.of_file(piece, SECRET))))
    assert sizes[1] < sizes[0] * 4


def test_a_reading_whose_time_was_corrected_has_the_number_of_what_the_clock_had_said() -> None:
    rows = _decoded()
    corrected = with_errors(rows, np.array([0, 5_000_000, 0]))

    assert corrected["ts_source"].to_pylist()[1] == "corrected"
    assert file_sums.of_readings(corrected, SECRET).tolist() == file_sums.of_readings(rows, SECRET).tolist()


def _repeated(lake: Path) -> None:
    """Under another header, with other content, and at a place that was used again."""
    other = batch_headers(1, 4, sealed=(1, Clock(True, "boot", 1)))
    again = batch_row(LINES, n=1, source_seq=2) | {"headers": header_block(other)}
    add_bronze(lake, [again, batch_row(LINES * 2, n=1, source_seq=3)])
    add_bronze(lake, [direct_row(b"2", source_seq=4), direct_row(b"1", source_seq=4, arrived=ARRIVED_US + 9)])


def _dropped(lake: Path) -> None:
    refine_all(lake)
    assert maintain.main(["--lake", str(lake), "--thin-bronze-after", "0"]) == Exit.WELL


@pytest.mark.parametrize(
    "happens", [lambda _lake: None, _repeated, _dropped], ids=["nothing", "repeats", "thin"]
)
@pytest.mark.parametrize("at_once", [4_000_000, 1], ids=["whole", "in shares"])
def test_what_is_as_it_came_is_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None], at_once: int
) -> None:
    monkeypatch.setattr(scan, "_ROWS_AT_ONCE", at_once)
    lake = tmp_path / "lake"
    first = [
        batch_row(LINES, n=1, source_seq=1),
        direct_row(b"1", source_seq=4),
        direct_row(b"no", source_seq=5),
    ]
    add_bronze(lake, first)
    refine_all(lake)
    happens(lake)
    refine_all(lake)

    code, report = audited(lake, "--deep")
    findings = report["findings"]

    assert not any("not what their payloads hold" in finding for finding in findings), findings
    dropped = [finding for finding in findings if "were not compared" in finding]
    assert len(dropped) == (happens is _dropped)
    assert code in (Exit.WELL, Exit.LOSS), "sequences that these tests leave out"
