"""Whether the jobs take time in proportion and memory in none: 1, 4 and 16 million readings through `ingest`
and `refine`, the most memory of each with all of its processes; and a query on 5,000 files before and after
`maintain`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import psutil
import pyarrow as pa

from bench import lake as lakes
from bench.hub_stream import fill_from_leaf, hub
from bench.result import Against, Result, Row
from bench.spark_ingest import check, messages
from hub_jobs.tables import ensure_table, frame
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNIT: Final = 1_000_000
_SIZES: Final = (1, 4, 16)
_STREAM: Final = "TELEMETRY_0"
_FILES: Final = 5_000
_ROWS: Final = 100
_REPEATS: Final = 3
_LOOK_SECONDS: Final = 0.05


def run() -> Result:
    """Measure all of it."""
    rows: list[Row] = []
    found = {size: _sized(size * _UNIT) for size in _SIZES}
    least = found[_SIZES[0]]
    for size, (seconds, megabytes) in found.items():
        what = f"{size} million readings through ingest and refine"
        rows.append(Row(f"{what}, their whole processes", seconds, "s"))
        rows.append(Row(f"{what}, the most memory", megabytes, "MB"))
    most = found[_SIZES[-1]]
    # Both pay for the start of their processes: what counts is what fifteen million more take.
    first, last = (found[_SIZES[1]][0] - least[0]) / 3, (most[0] - found[_SIZES[1]][0]) / 12
    rows.append(Row("a further million between 1 and 4 million", first, "s"))
    rows.append(
        Row(
            "a further million between 4 and 16 million",
            last,
            "s",
            None,
            Against("between 1 and 4", first),
            True,
        )
    )
    return Result("spark-scale", rows + _many_files())


def _sized(readings: int) -> tuple[float, float]:
    shape = lakes.Shape(readings, domains=1)
    with hub() as one:
        url = one.url
        fill_from_leaf(one, _STREAM, shape.domain(0), messages(shape))
        lake = one.directory / "lake"
        first = _watched("ingest", "--server", url, "--lake", str(lake))
        second = _watched("refine", "--lake", str(lake))
        check(lake, shape)
    return first[0] + second[0], max(first[1], second[1])


def _watched(job: str, *options: str) -> tuple[float, float]:
    """Seconds of a job's process, and the most memory of it and its children in MB; pages that they share
    count once."""
    began = time.monotonic()
    command = [sys.executable, "-m", f"hub_jobs.{job}", *options]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    most = 0.0
    watching = threading.Event()

    def watch() -> None:
        nonlocal most
        process = psutil.Process(running.pid)
        while not watching.wait(_LOOK_SECONDS):
            most = max(most, _megabytes(process))

    thread = threading.Thread(target=watch)
    thread.start()
    code = running.wait()
    watching.set()
    thread.join()
    if code:
        raise RuntimeError(f"{job} ended with {code}")
    return time.monotonic() - began, most


def _megabytes(process: psutil.Process) -> float:
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_full_info().pss
    except psutil.Error:
        return 0.0
    return total / 1e6


def _many_files() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake = Path(directory) / "lake"
        _make_files(lake)
        from hub_jobs.session import session

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
