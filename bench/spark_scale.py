"""Whether the jobs take time in proportion and memory in none: half a million readings, four and sixteen
times as many through `ingest` and `refine`, the most memory of each with all their processes; and a query on
5,000 files before and after `maintain`.

`READINGS=1000000 python -m bench spark-scale` for another number than half a million to begin with.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import psutil
import pyarrow as pa

from bench import lake as lakes
from bench.hub_stream import fill_from_leaf, hub
from bench.result import Against, Result, Row
from bench.spark_ingest import check, messages
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.parquet import PartWriter
from hub_jobs.tables.scan import files, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READINGS: Final = 500_000
_TIMES: Final = (1, 4, 16)
_STREAM: Final = "TELEMETRY_0"
_FILES: Final = 5_000
_ROWS: Final = 100
_REPEATS: Final = 3
_LOOK_SECONDS: Final = 0.5
"""Looking costs the process that is looked at some milliseconds."""


def run() -> Result:
    least = int(os.environ.get("READINGS", _READINGS))
    found = {}
    for times in _TIMES:
        print(f"{times * least:,} readings", flush=True)
        found[times] = _sized(times * least)
    rows = []
    for times, (seconds, megabytes) in found.items():
        what = f"{times * least / 1e6:g} million readings through ingest and refine"
        rows.append(Row(f"{what}, their whole processes", seconds, "s"))
        rows.append(Row(f"{what}, the most memory", megabytes, "MB"))
    return Result("spark-scale", [*rows, *_growth(found, least), *_many_files()], {"readings": str(least)})


def _growth(found: dict[int, tuple[float, float]], least: int) -> list[Row]:
    """What more readings cost. All pay for the start of their processes, so that what counts is what further
    ones take."""
    first, middle, last = (found[times] for times in _TIMES)
    by = [least * (after - before) / 1e6 for before, after in pairwise(_TIMES)]
    early, late = (middle[0] - first[0]) / by[0], (last[0] - middle[0]) / by[1]
    return [
        Row(
            f"a further million readings between {_TIMES[1]} and {_TIMES[2]} times as many",
            late,
            "s",
            None,
            # On a busy machine the fewest may take longer than more of them, and nothing is known then.
            Against(f"between {_TIMES[0]} and {_TIMES[1]} times", early) if early > 0 else None,
            least=True,
        ),
        Row(
            f"the most memory with {_TIMES[2]} times as many",
            last[1],
            "MB",
            None,
            Against("with the fewest", first[1]),
            least=True,
        ),
    ]


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
