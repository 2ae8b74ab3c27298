"""By the age of the tables: a pass of each job over the lake of 1,000 leaves after a month, a year and five
years; 90 days are kept. A pass brings a tenth of a minute's readings, and each job is a whole
process with the start of its session; `gaps` looks at two hours, and back at seven days with windows
of `rollup`. In turns over all lakes, after a turn over the first to warm up. `ingest` is not
among them, because a stream has no age, nor `audit`: the rows of old files are not made, and what it takes
on a settled past is [a benchmark of its own](benchmarks-all.md#audit).

`LEAVES=10000 python -m bench spark-scale-age` for more leaves, which takes more than half an hour.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Final

from bench.aged_lake import NOW, AgedLake, make_windows
from bench.job_process import JobRun, run_job
from bench.result import Result, rounds
from bench.sweeps import Goals, Runs, Step, rows

_LEAVES: Final = 1_000
_AGES: Final = (30, 365, 5 * 365)
"""In days."""
_KEPT_DAYS: Final = 90
"""`maintain --keep`."""
_PASS_READINGS: Final = 6
_ROUNDS: Final = 2
_GOALS: Final = Goals(time=1.2, memory=1.25)
"""Beside a month."""


def run() -> Result:
    """Make the lakes and play the passes."""
    leaves = int(os.environ.get("LEAVES", _LEAVES))
    result = Result("spark-scale-age", options={"leaves": str(leaves)})
    with ExitStack() as stack:
        lakes = {}
        for days in _AGES:
            step = Step(days, "days")
            print(step.name, flush=True)
            with result.part(step.name):
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-"))
                lake = AgedLake(Path(directory), leaves, days, min(days, _KEPT_DAYS), _PASS_READINGS)
                with redirect_stdout(StringIO()):
                    lake.make()
                    make_windows(lake, leaves)
                lakes[step] = lake
        steps: dict[Step, Runs] = {}
        for number in range(1 + rounds(_ROUNDS)):
            for step in [*lakes] if number else [*lakes][:1]:
                with result.part(step.name):
                    passes = _passes(lakes[step])
                    print(f"{step.name}: {passes}", flush=True)
                    if number:
                        for job, job_run in passes.items():
                            steps.setdefault(step, {}).setdefault(job, []).append(job_run)
                    continue
                del lakes[step]
    result.rows += rows(steps, _GOALS)
    return result


def _passes(lake: AgedLake) -> dict[str, JobRun]:
    lake.bring()
    lake.ingest()
    hour = timedelta(hours=1)
    window = ("--from", (NOW - hour).isoformat(), "--to", (NOW + hour).isoformat())
    options = {"refine": (), "rollup": (), "gaps": window, "maintain": ()}
    return {job: run_job(job, "--lake", str(lake.path), *given) for job, given in options.items()}
