"""By executors: the same backlog, of 2 GB as the hub's server counts it, through `ingest` and `refine` on a
standalone cluster of one, two and four executors, each a worker of one core that is pinned to a core. They
are submitted as to any cluster; driver, server and cluster share the cores of this machine, which has two:
four executors share them, and two share them with the driver and the server. What counts is the whole
process, with the start of its session.

`GIGABYTES=0.1 python -m bench spark-scale-executors` for another backlog.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from bench.backlog import STREAM, fill_backlog
from bench.hub_stream import Hub, hub
from bench.job_process import JobRun, run_command
from bench.lake import Shape
from bench.result import Against, Result, Row
from bench.spark_ingest import check
from bench.sweeps import Measure, Step, row
from tests.harness.standalone import SPARK_HOME, environment, open_nodes

_GIGABYTES: Final = 2.0
_EXECUTORS: Final = (1, 2, 4)
_GOALS: Final = {2: 1.6}
"""At least so many times one executor."""
_ROOT: Final = Path(__file__).parents[1]


def run() -> Result:
    """Play the same backlog with each number of executors."""
    gigabytes = float(os.environ.get("GIGABYTES", _GIGABYTES))
    result = Result("spark-scale-executors", options={"gigabytes": f"{gigabytes:g}"})
    one: dict[str, Against] = {}
    with hub() as filled:
        shape = fill_backlog(filled, gigabytes)
        for executors in _EXECUTORS:
            step = Step(executors, "executors")
            print(step.name, flush=True)
            with result.part(step.name):
                for job, job_run in asyncio.run(_measured(filled, shape, executors)).items():
                    result.rows += _rows(step, job, job_run, shape, one.get(job))
                    one.setdefault(job, Against("with one", shape.readings / job_run.seconds))
    return result


def _rows(step: Step, job: str, job_run: JobRun, shape: Shape, one: Against | None) -> list[Row]:
    rate = shape.readings / job_run.seconds
    return [
        row((step, job, Measure.TIME), job_run.seconds, None),
        row((step, job, Measure.RATE), rate, one, _GOALS.get(int(step.value))),
        row((step, job, Measure.MEMORY), job_run.megabytes, None),
    ]


async def _measured(filled: Hub, shape: Shape, executors: int) -> dict[str, JobRun]:
    directory = filled.directory / f"cluster-{executors}"
    cores = sorted(os.sched_getaffinity(0))
    pinned = [cores[number % len(cores)] for number in range(executors)]
    lake = directory / "lake"
    options = {
        "ingest": ("--server", filled.url, "--stream", STREAM, "--lake", str(lake)),
        "refine": ("--lake", str(lake)),
    }
    found = {}
    async with open_nodes(directory, pinned) as (url, nodes):
        workers = [node.process.pid for node in nodes[1:]]
        for job, given in options.items():
            command = _submitted(url, executors, job, *given)
            env = environment(directory) | {"PYTHONPATH": str(_ROOT)}
            found[job] = await asyncio.to_thread(run_command, job, command, env, workers)
    check(lake, shape)
    return found


def _submitted(url: str, executors: int, job: str, *options: str) -> list[str]:
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": str(_ROOT),
        # A job shares its work out among the executors that are there when its session begins.
        "spark.cores.max": str(executors),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    script = _ROOT / "hub_jobs" / job / "__main__.py"
    return [str(SPARK_HOME / "bin" / "spark-submit"), "--master", url, *conf, str(script), *options]
