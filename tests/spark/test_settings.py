"""What an operator sets for Spark, or a session of the same process, changes no result of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import pytest

from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import file_paths, read
from tests.harness.standalone import ConnectServer
from tests.spark.lakes import JOB_SECONDS, add_bronze, commit, contents
from tests.unit.hub_jobs.rows import batch_row

pytestmark = pytest.mark.spark

HOSTILE: Final = {
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
}
JAVA: Final = "-Duser.timezone=America/St_Johns"
OWN_SESSION: Final = """
import json, os, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for key, value in json.loads(os.environ["SETTINGS"]).items():
    builder = builder.config(key, value)
mine = builder.getOrCreate()
before = mine.conf.getAll
"""
AFTER: Final = """
assert mine.conf.getAll == before, "the session of the program is changed"
"""
JOBS: Final = """
import sys
from hub_jobs.gaps import run as gaps
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup
lake = ["--lake", sys.argv[1]]
codes = [job.main(lake) for job in (refine, rollup)]
codes.append(gaps.main([*lake, "--from", "2026-11-16T00:00:00Z", "--to", "2026-11-18T11:00:00Z"]))
assert codes == [0, 0, 0], codes
"""
TABLES: Final = ("readings", "rollup_1m", "rollup_1h", "rollup_1d", "gaps")


def ran(lake: Path, program: str, **environment: str) -> dict[str, list[str]]:
    """What the tables hold after a program of its own has run on a copy of a lake."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(lake)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYSPARK_PYTHON": sys.executable,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        name: [repr(row[1:] if name == "gaps" else row) for row in contents(lake, name)] for name in TABLES
    }


def as_arguments(settings: Mapping[str, str]) -> str:
    given = " ".join(f"--conf {key}={value}" for key, value in settings.items())
    return f'{given} --conf "spark.driver.extraJavaOptions={JAVA}" pyspark-shell'


async def test_settings_of_an_operator_a_server_or_the_programs_own_session_change_no_row(
    tmp_path: Path,
) -> None:
    plain = tmp_path / "plain"
    start = datetime(2026, 11, 17, 22, 30, tzinfo=UTC)
    old = datetime(1200, 3, 1, 12, 45, tzinfo=UTC)
    moments = [start + timedelta(minutes=7 * at) for at in range(12)] + [start + timedelta(hours=-9), old]
    lines = [
        json.dumps(
            {"ts": at.isoformat(), "device": f"d{n % 2}", "metric": "a_total", "value": n, "tags": {"a": "b"}}
        )
        for n, at in enumerate(moments)
    ]
    add_bronze(plain, [batch_row(("\n".join(lines) + "\n").encode(), n=1, source_seq=1)])
    submitted, beside, served = (
        copytree(plain, tmp_path / name) for name in ("submitted", "beside", "served")
    )

    expected = ran(plain, JOBS)

    assert any("datetime.datetime(1200, 3, 1, 12, 45" in row for row in expected["rollup_1m"])
    assert all(expected.values())
    assert ran(submitted, JOBS, PYSPARK_SUBMIT_ARGS=as_arguments(HOSTILE), TZ="Asia/Kathmandu") == expected
    given = json.dumps({**HOSTILE, "spark.driver.extraJavaOptions": JAVA})
    assert ran(beside, OWN_SESSION + JOBS + AFTER, SETTINGS=given, TZ="Asia/Kathmandu") == expected
    server = ConnectServer(tmp_path / "server", HOSTILE)
    try:
        await server.start()
        assert ran(served, JOBS, **server.environment) == expected
    finally:
        server.kill()


def test_a_session_that_ignores_damaged_files_still_fails_over_them(spark: Any, tmp_path: Path) -> None:
    commit(tmp_path, "readings", [{"metric": "m"}])
    (path,) = file_paths(ensure_table(tmp_path, "readings"))
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:-20])
    lenient = spark.newSession()
    lenient.conf.set("spark.sql.files.ignoreCorruptFiles", "true")

    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        read(lenient, tmp_path / "readings").collect()
