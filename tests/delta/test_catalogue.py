"""A table of a lake in a Hive metastore: registered once, it shows what the jobs commit later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
COUNT = "SELECT count(*), count(DISTINCT n) FROM petiole.bronze"
COLUMNS = "SHOW COLUMNS IN petiole.bronze"
_SESSION = """
import json, sys
from pathlib import Path
from tests.delta.conftest import builder

at = Path(sys.argv[1])
spark = (
    builder(at)
    .config("spark.sql.catalogImplementation", "hive")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:{at}/metastore;create=true")
    .getOrCreate()
)
rows = [[list(row) for row in spark.sql(statement).collect()] for statement in sys.argv[2:]]
Path(at, "rows.json").write_text(json.dumps(rows))
"""
"""A session of its own each time, so that the metastore alone knows the table."""


@pytest.mark.usefixtures("spark")
def test_a_registered_table_shows_new_files_and_new_columns(tmp_path: Path) -> None:
    lake, metastore = tmp_path / "lake", tmp_path / "spark"
    metastore.mkdir()
    add_bronze(lake, [batch_row(LINE, n, source_seq=n) for n in (1, 2)], files=2)

    *_, count, columns = statements(
        metastore,
        "CREATE DATABASE petiole",
        f"CREATE TABLE petiole.bronze USING DELTA LOCATION '{lake}/bronze'",
        COUNT,
        COLUMNS,
    )

    assert count == [[2, 2]]
    assert ["n"] in columns
    assert ["line_of_a_later_release"] not in columns

    add_bronze(lake, [batch_row(LINE, 3, source_seq=3)])
    later = Field("line_of_a_later_release", PrimitiveType("long"))
    DeltaTable(lake / "bronze").alter.add_columns([later])

    count, columns = statements(metastore, COUNT, COLUMNS)
    assert count == [[3, 3]]
    assert ["line_of_a_later_release"] in columns


def statements(metastore: Path, *texts: str) -> list[Any]:
    """The rows of SQL statements in a session of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _SESSION, str(metastore), *texts],
        capture_output=True,
        text=True,
        check=False,
        cwd=metastore,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[Any] = json.loads((metastore / "rows.json").read_text())
    return found
