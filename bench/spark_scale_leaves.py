"""By leaves: the same five million readings, in as many batches, of 10, 1,000, 10,000 and 50,000 leaves of
one class, each a space of its own in `bronze`; more leaves are more series, too. `refine` takes in all of it,
`rollup` makes all windows, `gaps` looks at the last day, `audit` judges every leaf, `maintain` does what an
hour's run does. Each is a whole process.

`LEAVES=1000 python -m bench spark-scale-leaves` for fewer leaves than 50,000, and fewer readings with them.
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

_LEAVES: Final = 50_000
_FEWEST: Final = 10
_PARTS: Final = (50, 5, 1)
_READINGS: Final = 100
"""For each of the most leaves, in two batches."""
_BATCH: Final = 50
_JOBS: Final = ("refine", "rollup", "gaps", "audit", "maintain")


def run() -> Result:
    """Play each number of leaves, the fewest first."""
    most = int(os.environ.get("LEAVES", _LEAVES))
    result = Result("spark-scale-leaves", options={"leaves": str(most)})
    steps: dict[Step, Runs] = {}
    for leaves in (_FEWEST, *(most // part for part in _PARTS)):
        step = Step(leaves, "leaves")
        print(step.name, flush=True)
        with result.part(step.name):
            steps[step] = _measured(lakes.Shape(most * _READINGS, _BATCH, leaves))
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
