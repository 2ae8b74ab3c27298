"""The audit of a table with many batches, which `bench audit` does with ten million readings."""

from __future__ import annotations

import json
from pathlib import Path

from agent.contract import Exit
from bench import lake as lakes
from hub_jobs.audit import run as audit


def test_one_lost_reading_among_many_is_named_by_batch_and_index(tmp_path: Path) -> None:
    lake, report, shape = tmp_path / "lake", tmp_path / "audit.json", lakes.Shape(100_250)
    lakes.make(lake, shape, processes=1)

    assert audit.main(["--lake", str(lake), "--json", str(report)]) == Exit.WELL
    rows = json.loads(report.read_text())["rows"]
    assert sum(row["in_readings"] for row in rows) == 100_250

    sentence = lakes.lose(lake, shape, number=123, index=250)
    assert audit.main(["--lake", str(lake), "--json", str(report)]) == Exit.LOSS
    found = json.loads(report.read_text())
    assert found["findings"] == [sentence]
    assert sum(one["missing"] for one in found["rows"]) == 1
