"""By leaves: the same number of readings, in as many batches, of 10, 1,000, 10,000 and 50,000 leaves of one
class, each a space of its own in `bronze`; more leaves are more series, too. `refine` takes in all of it,
`rollup` makes all windows, `gaps` looks at the last day, `audit` judges every leaf, `maintain` does what an
hour's run does. Each is a whole process.

`READINGS=200000 python -m bench spark-scale-leaves` for fewer than five million.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from bench import lake as lakes
from bench.job_process import run_job
from bench.result import Result
from bench.spark_ingest import check
from bench.sweeps import Goals, Runs, Step, rows

_READINGS: Final = 5_000_000
_LEAVES: Final = (10, 1_000, 10_000, 50_000)
_BATCHES: Final = 100_000
_JOBS: Final = ("refine", "rollup", "gaps", "audit", "maintain")


def run() -> Result:
    """Play each number of leaves, the fewest first."""
    readings = int(os.environ.get("READINGS", _READINGS))
    result = Result("spark-scale-leaves", options={"readings": str(readings)})
    steps: dict[Step, Runs] = {}
    for leaves in _LEAVES:
        step = Step(leaves, "leaves")
        print(step.name, flush=True)
        with result.part(step.name):
            steps[step] = _measured(lakes.Shape(readings, readings // _BATCHES, leaves))
    result.rows += rows(steps, Goals())
    return result


def _measured(shape: lakes.Shape) -> Runs:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        lake = Path(directory) / "lake"
        lakes.make(lake, shape, refined=False)
        runs: Runs = {}
        for job in _JOBS:
            runs[job] = [run_job(job, "--lake", str(lake))]
            print(f"{job}: {runs[job][0]}", flush=True)
        check(lake, shape)
    return runs
