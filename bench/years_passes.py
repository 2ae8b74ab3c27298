"""Whole passes over the lake of ten thousand leaves at two ages, in turns: the jobs as they run under
`--every 60s`, in a process whose Spark session is warm, with all that Spark does with the rows of a pass,
which are a reading a second of each leaf. `maintain` has only these to write together, not those of an hour.

What counts is the time of a processor, of this process and all that it started: others may use the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import psutil

from agent.contract import Exit
from bench.years_lake import AgedLake
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.rollup import run as rollup

_WARM_ROUNDS: Final = 1
_ROUNDS: Final = 3
_BATCH: Final = 60
"""Readings of a leaf in a minute."""

Passes = dict[str, list[float]]
"""CPU-seconds of each job's passes."""


def whole_passes(leaves: int, ages: list[tuple[int, int]], rounds: int = _ROUNDS) -> list[Passes]:
    """Play passes over a lake of each age, given as days and the days of them that are kept, in turns. Raises
    `RuntimeError` where a job fails."""
    found: list[Passes] = [{} for _ in ages]
    with ExitStack() as stack:
        lakes = []
        for days, kept in ages:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-"))
            lakes.append(AgedLake(Path(directory), leaves, days, kept, _BATCH))
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
        "maintain": lambda: maintain.main(["--lake", str(lake.path)]),
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


def _cpu_seconds() -> float:
    """Of this process and of all that it started, also of what has ended."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)
