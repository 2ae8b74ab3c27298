"""The audit of tables that Spark's tasks count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.audit.rows import scan
from hub_jobs.spark.session import run_tasks
from tests.spark.lakes import add_bronze, replaced, told
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import LEDGER, direct_row, ledger_row, numbered

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_tables_too_large_for_the_driver_are_counted_by_spark_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    add_bronze(
        lake, [*numbered(1, 2, 3, 4), direct_row(b"21.5", source_seq=5), ledger_row(LEDGER, source_seq=6)]
    )
    refine_all(lake)
    _, here, _ = told(lake)
    monkeypatch.setattr(scan, "HERE_ROWS", 0)
    run, ran = run_tasks, []

    def spark_run(spark: Any, task: Callable[[Any], Any], work: Sequence[Any]) -> list[Any]:
        ran.append(task)
        return run(spark, task, work)

    monkeypatch.setattr(scan, "run_tasks", spark_run)

    _, by_spark, _ = told(lake)

    assert by_spark == here
    assert len(ran) == 2, "the ledgers, and the rest"

    replaced(lake, "readings", lambda all_: all_.set_column(5, "value", pa.array([2.0] * all_.num_rows)))
    assert audit.main(["--lake", str(lake), "--deep"]) == Exit.LOSS
    shown = capsys.readouterr().out
    assert "batches 1-4: what is in readings and quarantine is not what their payloads hold" in shown
    assert "messages 5 of TEL_edge-1_normal (abc): what is in readings" in shown
    assert len(ran) == 5, "the contents come last"
