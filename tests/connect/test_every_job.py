"""Every job that reads tables by Spark, on a server of Spark Connect and without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from agent.contract import Exit
from hub_jobs.refine import run as refine
from hub_jobs.tables.compaction import rewrite
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import files
from hub_jobs.tables.schemas import SCHEMAS
from tests.spark.connect_client import Client
from tests.spark.every_job import run_all
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import LEDGER, LINE, batch_row, direct_row, ledger_row, numbered

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600, method="thread")]


@pytest.fixture
def damaged(tmp_path: Path, spark: object) -> Path:
    """A lake that is not refined to its end: a reading is gone, and another has another value."""
    lake = tmp_path / "damaged"
    line = b'{"ts":17950000%02d,"device":"pump","metric":"energy_total","value":1}\n'
    lines = b"".join(line % at for at in range(10))
    add_bronze(lake, [*numbered(1, 2, text=lines), batch_row(LINE * 9 + b"bad\n", n=3, source_seq=3)])
    add_bronze(lake, [direct_row(b"21.5", source_seq=4), ledger_row(LEDGER, source_seq=5)], files=2)
    assert refine.main(["--lake", str(lake)]) == Exit.WELL
    table = ensure_table(lake, "readings")
    paths = files(table)["path"].to_pylist()

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index("value")
        return rows.set_column(at, "value", pa.array([*range(rows.num_rows)], pa.float64())).slice(1)

    table.rewrite(rewrite(lake, table, paths, changed), paths, changed=True)
    add_bronze(lake, numbered(4, text=lines))
    return lake


@pytest.mark.usefixtures("spark")
def test_every_job_says_and_writes_what_it_does_without_spark_connect(
    client: Client, damaged: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "connected"
    shutil.copytree(damaged, lake)
    done = client.call("every_job", lake)
    assert done.result, done.said
    shown = json.loads(json.dumps(done.result).replace(str(lake), str(damaged)))

    assert shown == [list(job) for job in run_all(damaged)]
    name, code, out, *_ = shown[0]
    assert (name, code) == ("audit", Exit.LOSS)
    assert "1 readings missing, 0 doubled" in out
    assert "contents that are not those of their payloads" in out
    for table in SCHEMAS:
        columns = [name for name in SCHEMAS[table].names if name != "at"]
        assert contents(lake, table, *columns) == contents(damaged, table, *columns), table
