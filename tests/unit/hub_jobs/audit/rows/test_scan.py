"""What the audit reads of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from hub_jobs.audit.rows import scan
from hub_jobs.audit.rows.count_rows import Share
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.schemas import READINGS
from tests.unit.hub_jobs.rows import RUN

_BATCHED = {"domain": "edge-1", "class": "normal", "run": RUN, "n": 1}
_DIRECT = {"domain": "edge-1", "source_stream": "TEL_edge-1_normal", "source_identity": "abc"}


def test_readings_of_batches_and_of_devices_that_stand_together_are_each_counted(tmp_path: Path) -> None:
    together: list[dict[str, Any]] = [
        {**_BATCHED, "index": 0},
        {**_DIRECT, "index": 0, "source_seq": 7},
        {**_BATCHED, "index": 1},
    ]
    batched = [{**_BATCHED, "n": 2, "index": 0}]
    for rows in (together, batched):
        table = ensure_table(tmp_path, "readings")
        table.commit(write_rows(tmp_path, "readings", pa.Table.from_pylist(rows, READINGS)), {})
    tables = AuditTables(ensure_table(tmp_path, "bronze"), ensure_table(tmp_path, "readings"), None, {})

    found = scan.count(tables, Share())["readings"]

    assert sum(found.batches["places"].to_pylist()) == 3
    assert set(found.batches["n"].to_pylist()) == {1, 2}
    assert found.direct["source_seq"].to_pylist() == [7]
