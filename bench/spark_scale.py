"""Eight million readings through `ingest` and `refine`, and the most memory of each with all their processes;
and a query on 5,000 files before and after `maintain`. How time and memory grow with the backlog, with
executors, leaves and the age of the tables is measured by the sweeps (`python -m bench 'spark-scale-*'`) and
drawn in [how the jobs scale](scale-all.md).

`READINGS=1000000 python -m bench spark-scale` for another number than eight million.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bench import lake as lakes
from bench.hub_stream import fill_from_leaf, hub
from bench.job_process import run_job
from bench.result import Against, Result, Row
from bench.spark_ingest import check, messages
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import files, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READINGS: Final = 8_000_000
_STREAM: Final = "TELEMETRY_0"
_FILES: Final = 5_000
_ROWS: Final = 100
_REPEATS: Final = 3


def run() -> Result:
    readings = int(os.environ.get("READINGS", _READINGS))
    result = Result("spark-scale", options={"readings": str(readings)})
    with result.part("through ingest and refine"):
        result.rows += _sized(readings)
    with result.part("a query on many files"):
        result.rows += _many_files()
    return result


def _sized(readings: int) -> list[Row]:
    shape = lakes.Shape(readings, domains=1)
    with hub() as one:
        fill_from_leaf(one, _STREAM, shape.domain(0), messages(shape))
        lake = one.directory / "lake"
        runs = (
            run_job("ingest", "--server", one.url, "--lake", str(lake)),
            run_job("refine", "--lake", str(lake)),
        )
        check(lake, shape)
    what = f"{readings / 1e6:g} million readings through ingest and refine"
    return [
        Row(f"{what}, their whole processes", sum(run.seconds for run in runs), "s"),
        Row(f"{what}, the most memory", max(run.megabytes for run in runs), "MB"),
    ]


def _many_files() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake = Path(directory) / "lake"
        _make_files(lake)
        from hub_jobs.spark.session import session

        spark = session("bench")
        before = _queried(spark, lake)
        count = files(ensure_table(lake, "readings")).num_rows
        command = [sys.executable, "-m", "hub_jobs.maintain", "--lake", str(lake)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        left = files(ensure_table(lake, "readings")).num_rows
        after = _queried(spark, lake)
        spark.stop()
    what = f"a query on {_FILES * _ROWS:,} readings"
    return [
        Row(
            f"{what} in {left} files, after maintain",
            after,
            "s",
            None,
            Against(f"in {count:,} files", before),
            True,
        )
    ]


def _make_files(lake: Path) -> None:
    """A table of many small files, as so many small commits of refine would leave it."""
    table = ensure_table(lake, "readings")
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    written = []
    for number in range(_FILES):
        with PartWriter(lake, "readings") as writer:
            rows = pa.table(
                {field.name: _column(field, number, moment) for field in table.schema},
                schema=table.schema,
            )
            writer.write(rows)
        written += writer.files
    table.commit(written, {"bench": 1})


def _column(field: pa.Field, number: int, moment: datetime) -> pa.Array:
    values = {
        "ts": pa.repeat(pa.scalar(moment), _ROWS),
        "arrived": pa.repeat(pa.scalar(moment), _ROWS),
        "domain": pa.repeat(pa.scalar(f"edge-{number % 50}"), _ROWS),
        "metric": pa.repeat(pa.scalar("temperature"), _ROWS),
        "value": pa.array([float(number + row) for row in range(_ROWS)]),
    }
    given = values.get(field.name)
    return pa.nulls(_ROWS, field.type) if given is None else given.cast(field.type)


def _queried(spark: SparkSession, lake: Path) -> float:
    """Seconds of the mean of a domain's readings, the median of a few."""

    def once() -> float:
        began = time.monotonic()
        rows = frame(spark, ensure_table(lake, "readings")).groupBy("domain").avg("value").collect()
        if len(rows) != 50:
            raise RuntimeError(f"{len(rows)} of 50 domains were found")
        return time.monotonic() - began

    return median(once() for _ in range(_REPEATS))
