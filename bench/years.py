"""Five years of ten thousand leaves, with a driven clock: what a leaf, the registrar and the lake keep, and
what a pass of each job takes by the age of the lake, in CPU-seconds of its driver. What is made in its true
number, and what is not, stands in `bench/years_lake.py`; the audit has a benchmark of its own.

`LEAVES=1000 YEARS=1 python -m bench years` for fewer leaves and years.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import timedelta
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import psutil
import structlog

from agent.contract import Exit
from bench.result import Against, Result, Row
from bench.years_hub import MONTHS_A_YEAR, Hub
from bench.years_lake import NOW, Aged, AgedLake, measured
from bench.years_leaf import YEAR, Leaf
from hub_jobs.gaps import run as gaps
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup

_LEAVES: Final = 10_000
_YEARS: Final = 5
MONTH: Final = 30
KEPT_DAYS: Final = 90
"""`maintain --keep`."""
_LARGEST: Final = 100.0
SLOWER: Final = 1.2
_LAST_STARTS: Final = 20


def run() -> Result:
    """Live through the years, each part in a process of its own, all at once: nothing waits, and what counts
    is the time of a processor."""
    leaves, years = int(os.environ.get("LEAVES", _LEAVES)), int(os.environ.get("YEARS", _YEARS))
    result = Result("years", options={"leaves": str(leaves), "years": str(years)})
    context = get_context("spawn")
    parts = (_leaf, _hub, _lakes, _passes)
    with ProcessPoolExecutor(len(parts), context) as pool:
        running = {part.__name__: pool.submit(part, leaves, years) for part in parts}
        for name, rows in running.items():
            with result.part(name):
                result.rows += rows.result()
    return result


def _leaf(_: int, years: int) -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        leaf, lived = Leaf(Path(directory)), 0
        for days in (MONTH, *(YEAR * year for year in range(1, years + 1))):
            leaf.live(days - lived, lived)
            lived, sizes = days, leaf.sizes()
            print(f"leaf, {_age(days)}: {sizes}", flush=True)
            said = {name: sizes.pop(name) for name in ("announcement", "ledger record")}
            files = {"all its files": sum(sizes.values()), "its largest file": max(sizes.values())}
            for name, size in {**files, "state.json": sizes["state.json"], **said}.items():
                found.append(Row(f"a leaf, {_age(days)}: {name}", size / 1000, "kB", least=True))
        last = leaf.seconds[-_LAST_STARTS:]
        first = leaf.seconds[:MONTH][-_LAST_STARTS:]
    return [*found, _largest("a leaf", max(row.median for row in found) / 1000), _start(last, first, years)]


def _start(last: list[float], first: list[float], years: int) -> Row:
    """A start with the day after it, which is most of it and alike."""
    against = Against("in the first month", sum(first) / len(first))
    what = f"a leaf, {_age(years * YEAR)}: a start and the day that follows"
    return Row(what, sum(last) / len(last), "CPU-s", None, against, least=True)


def _hub(leaves: int, years: int) -> list[Row]:
    found: list[Row] = []
    hub, lived = Hub(leaves), 0
    for months in (1, *(MONTHS_A_YEAR * year for year in range(1, years + 1))):
        hub.live(months - lived)
        lived = months
        sizes = hub.sizes()
        print(f"hub, {months} months: {sizes}", flush=True)
        age = _age(months * MONTH if months == 1 else months * YEAR // MONTHS_A_YEAR)
        for name, size in sizes.items():
            in_bytes = name.startswith("bytes")
            value, unit = (size / 1000, "kB") if in_bytes else (size, "")
            found.append(
                Row(f"the registrar, {age}: {name.removeprefix('bytes of ')}", value, unit, least=True)
            )
    bucket = sum(map(len, hub.bucket.values())) / 1e6
    return [*found, _largest("the registrar", bucket)]


def _lakes(leaves: int, years: int) -> list[Row]:
    ages = [(MONTH, MONTH), (YEAR, KEPT_DAYS), (years * YEAR, KEPT_DAYS)]
    found = []
    for days, kept in ages:
        with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
            found.append(measured(Path(directory), leaves, days, kept))
            print(found[-1], flush=True)
    rows = [row for aged in found for row in _counts(aged)]
    month = found[0]
    for aged in found[1:]:
        for job, seconds in aged.seconds.items():
            against = Against("in the first month", month.seconds[job])
            what = f"the driver's part of {job}, {_age(aged.days)}"
            rows.append(Row(what, seconds, "CPU-s", None, against, least=True))
    names = ("bytes of the largest log file", "bytes of the largest file of seen")
    return [*rows, _largest("the lake beside its rows", max(found[-1].counts[name] for name in names) / 1e6)]


def _passes(leaves: int, years: int) -> list[Row]:
    month, old = whole_passes(leaves, [(MONTH, MONTH), (years * YEAR, KEPT_DAYS)])
    return [
        Row(
            f"a whole pass of {job}, {_age(years * YEAR)}",
            seconds,
            "CPU-s",
            SLOWER,
            Against("in the first month", month[job]),
            least=True,
        )
        for job, seconds in old.items()
    ]


def _counts(aged: Aged) -> list[Row]:
    where = f"the lake, {_age(aged.days)}, of which {aged.kept} days are kept"
    return [
        Row(f"{where}: {name.removeprefix('bytes of ')}", *_measure(name, count), least=True)
        for name, count in aged.counts.items()
    ]


def _measure(name: str, count: int) -> tuple[float, str]:
    return (count / 1e6, "MB") if name.startswith("bytes") else (count, "")


def _largest(whose: str, megabytes: float) -> Row:
    """The largest file of a part, with the goal of a hundred megabytes."""
    return Row(f"{whose}: the largest file", megabytes, "MB", 1.0, Against("the goal", _LARGEST), least=True)


def _age(days: int) -> str:
    if days < YEAR:
        return f"after {days} days"
    return "after a year" if days == YEAR else f"after {days // YEAR} years"


_WARM_ROUNDS: Final = 1
_ROUNDS: Final = 3
PASS_READINGS: Final = 6
"""Readings of a leaf in a pass: a tenth of what a minute brings, so that what grows weighs the more."""

Passes = dict[str, list[float]]
"""CPU-seconds of each job's passes."""


def whole_passes(leaves: int, ages: list[tuple[int, int]], rounds: int = _ROUNDS) -> list[Passes]:
    """Play passes in turns over a lake of each age (days, and the days of them that are kept): the jobs
    as they run under `--every 60s`, in a process whose Spark session is warm, with all that Spark does with
    the rows of a pass. `maintain` is a process of its own, and has nothing to write together; `gaps` looks at
    two hours. Raises `RuntimeError` where a job fails."""
    found: list[Passes] = [{} for _ in ages]
    with ExitStack() as stack:
        lakes = []
        for days, kept in ages:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-"))
            lakes.append(AgedLake(Path(directory), leaves, days, kept, PASS_READINGS))
            lakes[-1].make()
        for number in range(_WARM_ROUNDS + rounds):
            for lake, passes in zip(lakes, found, strict=True):
                taken = _round(lake)
                if number >= _WARM_ROUNDS:
                    for job, seconds in taken.items():
                        passes.setdefault(job, []).append(seconds)
                print(f"{taken}", flush=True)
    return found


def _round(lake: AgedLake) -> dict[str, float]:
    lake.bring()
    lake.ingest()
    options = rollup.RollupOptions(lake.path, quantiles=False, counters=["*_total"])
    jobs: dict[str, Callable[[], Exit]] = {
        "refine": lambda: refine.run(lake.path),
        "rollup": lambda: rollup.run(options),
        "maintain": lambda: _process("maintain", lake.path),
        "gaps": lambda: gaps.run(_two_hours(lake.path)),
    }
    taken = {}
    for name, job in jobs.items():
        before, began = _cpu_seconds(), time.monotonic()
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
            code = job()
        if code != Exit.WELL:
            raise RuntimeError(f"{name} ended with {code}: {said.getvalue()}")
        taken[name] = _cpu_seconds() - before
        print(f"{name} {time.monotonic() - began:.2f} s", flush=True)
    return taken


def _process(job: str, lake: Path) -> Exit:
    command = [sys.executable, "-m", f"hub_jobs.{job}", "--lake", str(lake)]
    return Exit(subprocess.run(command, check=False).returncode)


def _two_hours(lake: Path) -> gaps.GapsOptions:
    """The hour before the newest readings, and theirs."""
    hour = timedelta(hours=1)
    return gaps.GapsOptions(lake, NOW - hour, NOW + hour, timedelta(), 3.0, None, None)


def _cpu_seconds() -> float:
    """Of this process and of all that it started, also of what has ended."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)
