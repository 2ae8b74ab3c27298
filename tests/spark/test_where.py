"""What `petiole where` counts without Spark against what the audit counts with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from agent.contract import Exit, Letter, Previous, Readings
from hub_jobs.audit import run as audit
from hub_jobs.refine import run as refine
from hub_jobs.where import ScanPart, Waiting, look, open_lake
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import (
    LEDGER,
    LINE,
    OTHER_RUN,
    batch_row,
    dead_row,
    direct_row,
    ledger_row,
    numbered,
)
from tests.unit.hub_jobs.where.test_where import replace_readings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_both_count_the_same(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    letters = Letter(b"21,5", "/var/log/x:17", "not JSON").encode() + b"\n"
    said = replace(
        LEDGER,
        n=9,
        stored=((1, 9),),
        readings=Readings(accepted=97, stored=88, discarded=10, dead=2, refused=5),
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
    assert refine.main(["--lake", str(lake)]) == Exit.WELL

    def swap(table: pa.Table) -> pa.Table:
        here = pc.fill_null(pc.equal(table["n"], 6), False)
        lost = pc.and_(here, pc.equal(table["index"], 7))
        again = table.filter(pc.and_(here, pc.equal(table["index"], 3)))
        return pa.concat_tables([table.filter(pc.fill_null(pc.invert(lost), True)), again])

    replace_readings(lake, swap)
    add_bronze(lake, numbered(9))
    report = tmp_path / "audit.json"
    assert audit.main(["--lake", str(lake), "--json", str(report)]) == Exit.LOSS
    audited = [row for row in json.loads(report.read_text())["rows"] if row["domain"] == "edge-1"]

    found = look(open_lake(lake), ScanPart("edge-1"), Waiting())
    sums = found.classes["normal"]

    counted = "accepted stored in_bronze pending in_readings quarantined doubled discarded refused dead"
    same = counted.split()
    assert {name: getattr(sums, name) for name in same} == {
        name: sum(one[name] for one in audited) for name in same
    }
    assert sums.missing + sums.never_came == sum(one["missing"] for one in audited)
    assert sums.open_tail == sum(one["open_tail"] or 0 for one in audited)
    assert found.lost
