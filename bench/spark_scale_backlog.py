"""By the backlog: a stream of 0.1, 1 and 10 GB as the hub's server counts it, through `ingest`, `refine` and
`audit`, each a whole process that begins with nothing of it. A reading is a text of 256 characters that does
not compress well, some 200 bytes in the stream; each is counted in the table afterwards, and the audit finds
nothing. 100 GB were not made: the stream, `bronze` and `readings` hold each byte, and the disk has not four
times as many.

`GIGABYTES=1 python -m bench spark-scale-backlog` for a largest backlog of 1 GB.
"""

from __future__ import annotations

import os
from typing import Final

from bench.backlog import STREAM, fill_backlog
from bench.hub_stream import hub
from bench.job_process import run_job
from bench.result import Result, Row
from bench.spark_ingest import check
from bench.sweeps import Goals, Measure, Runs, Step, further, row, rows

_GIGABYTES: Final = 10.0
_PARTS: Final = (100, 10, 1)
_UNIT: Final = "GB of backlog"
_GOALS: Final = Goals(memory=1.25)
"""With ten times the backlog."""
_FURTHER_GOAL: Final = 1.15


def run() -> Result:
    """Play each backlog, the smallest first."""
    largest = float(os.environ.get("GIGABYTES", _GIGABYTES))
    result = Result("spark-scale-backlog", options={"gigabytes": f"{largest:g}"})
    steps: dict[Step, Runs] = {}
    sizes: dict[Step, int] = {}
    for part in _PARTS:
        step = Step(largest / part, _UNIT)
        print(step.name, flush=True)
        with result.part(step.name):
            steps[step], sizes[step] = _measured(step.value)
    result.rows += rows(steps, _GOALS, each=True)
    result.rows += further(sizes, steps, _FURTHER_GOAL)
    result.rows += _rates(steps, sizes)
    return result


def _measured(gigabytes: float) -> tuple[Runs, int]:
    with hub() as one:
        shape = fill_backlog(one, gigabytes)
        server, lake = ("--server", one.url), ("--lake", str(one.directory / "lake"))
        runs = {"ingest": [run_job("ingest", *server, "--stream", STREAM, *lake)]}
        runs["refine"] = [run_job("refine", *lake)]
        check(one.directory / "lake", shape)
        runs["audit"] = [run_job("audit", *lake, *server)]
    return runs, shape.readings


def _rates(steps: dict[Step, Runs], sizes: dict[Step, int]) -> list[Row]:
    return [
        row((step, job, Measure.RATE), sizes[step] / run.seconds, None)
        for step, runs in steps.items()
        for job, (run,) in runs.items()
    ]
