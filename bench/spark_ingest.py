"""Readings from the hub's stream into `readings`, committed: `ingest`, then `refine`.

Batches of 500 readings, 500 series, 40 sets of tags, values with noise. Cold: as an operator starts the jobs,
with Java's classes kept as an installation keeps them; both in one process (`ingest --then refine`), or each
a process of its own. Warm: in a session that has done it once. Direct: as devices publish, a number a
message, a fifth as many, which takes about as long. Server, driver and tasks share this machine.

`READINGS=1000000 python -m bench spark-ingest` for fewer than ten million.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from agent.contract import DEFAULT_CLASS, direct_subject
from bench import lake as lakes
from bench.hub_stream import Message, fill_from_leaf, hub, messages_of
from bench.result import Result, Row
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from hub_jobs.source.server import Server
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.scan import files

_READINGS: Final = 10_000_000
_REPEATS: Final = 3
_STREAM: Final = "TELEMETRY_0"
_AT_ONCE: Final = 200
_TIMES_FEWER: Final = 5
"""Direct messages than readings in batches."""


def run() -> Result:
    """Fill a stream and bring it into tables, again and again."""
    readings = int(os.environ.get("READINGS", _READINGS))
    shape = lakes.Shape(readings, domains=1)
    with hub() as one:
        url = one.url
        fill_from_leaf(one, _STREAM, shape.domain(0), messages(shape))
        fresh = (one.directory / f"lake-{number}" for number in count())
        _keep_classes(one.directory)
        together = median(_cold(url, next(fresh), shape, together=True) for _ in range(_REPEATS))
        apart = median(_cold(url, next(fresh), shape, together=False) for _ in range(_REPEATS))
        warm_up(url, next(fresh), shape)
        warm = [warm_up(url, next(fresh), shape) for _ in range(_REPEATS)]
        idle = _idle(url, next(fresh), shape)
    direct = lakes.Shape(readings // _TIMES_FEWER, domains=1)
    with hub() as one:
        fill_from_leaf(one, _STREAM, direct.domain(0), _numbers(direct))
        fresh = (one.directory / f"lake-{number}" for number in count())
        by_device = [sum(warm_up(one.url, next(fresh), direct)) for _ in range(_REPEATS)]
    of_ingest, of_refine = median(one for one, _ in warm), median(one for _, one in warm)
    return Result(
        "spark-ingest",
        [
            Row("warm: stream to readings", shape.readings / (of_ingest + of_refine), "readings/s"),
            Row("cold: stream to readings, one process", shape.readings / together, "readings/s"),
            Row("cold: stream to readings, two processes", shape.readings / apart, "readings/s"),
            Row("warm: ingest alone", shape.readings / of_ingest, "readings/s"),
            Row("warm: refine alone", shape.readings / of_refine, "readings/s"),
            Row("direct, warm: stream to readings", direct.readings / median(by_device), "readings/s"),
            Row("ingest with nothing to do, its whole process", idle, "s"),
        ],
        {"readings": str(readings)},
    )


def messages(shape: lakes.Shape) -> Iterator[Message]:
    """All batches of a lake, as they would be published."""
    for first in range(0, shape.batches, _AT_ONCE):
        yield from messages_of(lakes.batches(shape, range(first, min(first + _AT_ONCE, shape.batches))))
    yield from messages_of(lakes.ledgers(shape))


def _numbers(shape: lakes.Shape) -> Iterator[Message]:
    """A message a reading, of 500 devices in turns."""
    for number in range(shape.readings):
        yield (
            direct_subject(shape.domain(0), DEFAULT_CLASS, f"pump-{number % 500}", "bar"),
            {},
            b"%d.25" % number,
        )


def warm_up(url: str, lake: Path, shape: lakes.Shape) -> tuple[float, float]:
    """Seconds of ingest and of refine into an empty lake, in this process."""
    with redirect_stderr(StringIO()):
        began = time.monotonic()
        ingest.run(ingest.IngestOptions(Server(url), _STREAM, lake))
        between = time.monotonic()
        refine.run(lake)
        ended = time.monotonic()
    check(lake, shape)
    return between - began, ended - between


def check(lake: Path, shape: lakes.Shape) -> None:
    """Raises `RuntimeError` unless the lake holds all readings."""
    table = open_table(lake, "readings")
    held = 0 if table is None else sum(files(table)["num_records"].to_pylist())
    if held != shape.readings:
        raise RuntimeError(f"{held} of {shape.readings} readings are in the table")


def _keep_classes(cache: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(cache)
    _process("spark.class_archive")


def _cold(url: str, lake: Path, shape: lakes.Shape, *, together: bool) -> float:
    given = ("--lake", str(lake))
    if together:
        took = _process("ingest", "--server", url, *given, "--then", "refine")
    else:
        took = _process("ingest", "--server", url, *given) + _process("refine", *given)
    check(lake, shape)
    return took


def _idle(url: str, lake: Path, shape: lakes.Shape) -> float:
    warm_up(url, lake, shape)
    return _process("ingest", "--server", url, "--lake", str(lake))


def _process(job: str, *options: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", f"hub_jobs.{job}", *options]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
