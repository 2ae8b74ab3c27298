"""A process on Spark Connect that runs the steps it is sent, one after the other, so that client and session
start once: `Client` runs it, and the functions below are what it can do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from agent.contract import Exit


class Done(NamedTuple):
    """What came of a call: its result, or None and how it failed in `said`; and what it said."""

    result: Any
    said: str


class Client:
    """The process, with the environment that it gets."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, name: str, *arguments: object) -> Done:
        """Call a function of this module and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, *map(str, arguments)]), file=self._process.stdin, flush=True)
        return Done(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Let it end. It has started no process, thus no Java."""
        assert not psutil.Process(self._process.pid).children()
        self._process.communicate()

    def kill(self) -> None:
        """End it in any state, also after `close`."""
        with self._process:
            self._process.kill()


def read(url: str) -> list[int]:
    """How many messages a stream holds, the last of them, and in how many partitions Spark reads it."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from hub_jobs.source.datasource import register

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = spark.read.format("nats").option("servers", url).option("stream", "S").load()
    parts = rows.select("seq", F.spark_partition_id().alias("part"))
    found = parts.agg(F.count("*"), F.max("seq"), F.count_distinct("part")).first()
    assert found is not None
    return [*found]


def large() -> bool:
    """Whether large pieces and results of tasks arrive whole."""
    from hub_jobs.spark.session import run_tasks, session

    def twice(piece: bytes) -> tuple[bytes, bytes]:
        return piece, piece

    pieces = [os.urandom(3 << 20), b"small", os.urandom(3 << 20)]
    return run_tasks(session("test"), twice, pieces) == [twice(piece) for piece in pieces]


def job(name: str, *arguments: str) -> int:
    """The exit code of a job."""
    return int(import_module(f"hub_jobs.{name}.run").main(list(arguments)))


def stuck(begun: str, retries: str) -> int:
    """The exit code of a job whose task makes a file and never ends; PySpark repeats a question so often."""
    from hub_jobs.job_loop import Stop, run_job
    from hub_jobs.metrics import JobMetrics
    from hub_jobs.spark import connect_tasks
    from hub_jobs.spark.session import run_tasks, session

    def wait(file: str) -> None:
        Path(file).touch()
        threading.Event().wait()

    def run(_: Stop) -> Exit:
        run_tasks(session("stuck"), wait, [begun])
        return Exit.WELL

    connect_tasks.RETRIES["max_retries"] = int(retries)
    return int(run_job(run, None, JobMetrics("stuck")))


def every_job(lake: str) -> list[Any]:
    """What the jobs that read tables by Spark do with a lake."""
    from tests.spark.every_job import run_all

    return run_all(Path(lake))


def _serve() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        result, said = None, io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            try:
                result = globals()[name](*arguments)
            except Exception:
                traceback.print_exc()
        print(json.dumps(Done(result, said.getvalue())), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
