"""Runs a job once or repeatedly in one process, with one exit code per outcome.

A stop signal lets the job finish its commit. Every failure prints one sentence to standard error.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from agent.contract import Exit
from hub_jobs.metrics import DIRECTORY_VARIABLE, JobMetrics, ListenError, address
from hub_jobs.source.protocol import Denied, SourceApiError, Unreachable, WireError
from hub_jobs.spark.connect_tasks import lost_server
from hub_jobs.spark.java import JavaError
from hub_jobs.tables.delta import ConflictError, TableError
from hub_jobs.tables.places import parse_place
from hub_jobs.times import period


def ended(name: str, job: Callable[[], Exit], metrics: JobMetrics) -> Exit:
    """Run a job and turn expected errors into a sentence and an exit code. Counts conflicts."""
    try:
        return job()
    except ConflictError as error:
        metrics.conflicts.labels(metrics.name).inc()
        return _failed(name, Exit.CONFLICT, error)
    except (Unreachable, Denied) as error:
        return _failed(name, Exit.UNREACHABLE, error)
    except SourceApiError as error:
        return _failed(name, Exit.UNREACHABLE if error.code >= 500 else Exit.FAILED, error)
    except (TableError, JavaError, WireError, OSError, pa.ArrowException) as error:
        return _failed(name, Exit.FAILED, error)
    except Exception as error:
        if (reason := lost_server(error)) is not None:
            return _failed(name, Exit.UNREACHABLE, reason)
        if (reason := _spark_says(error)) is None:
            raise
        return _failed(name, Exit.FAILED, reason)


def gravest(codes: Iterable[Exit]) -> Exit:
    """Return the gravest code of several runs: losses first, because they are reported once, then faults that
    need a person.
    """
    return min(codes, key=_GRAVITY.index, default=Exit.WELL)


_GRAVITY: Final = (Exit.USAGE, Exit.LOSS, Exit.FAILED, Exit.UNREACHABLE, Exit.CONFLICT, Exit.WELL)


def say(name: str, text: str) -> None:
    """Print one line of a job to standard error."""
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _spark_says(error: Exception) -> str | None:
    """Return a Spark task's failure in one line, None for other errors. Spark's log has the full text."""
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return None
    lines = [line.strip() for line in str(error).splitlines()]
    last = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    # A task in Python ends its traceback with the error; what follows is of the Java machine.
    causes = [line for line in lines[last[-1] if last else 0 :] if _ERROR.match(line)]
    return f"Spark could not do it: {causes[0] if causes else lines[0]}"


_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Invalid|NotFound)\b.*: ")


def _failed(name: str, code: Exit, error: Exception | str) -> Exit:
    say(name, str(error))
    return code


Stop = Callable[[], bool]
"""Tells whether a job must end before its next commit."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def job_parser(name: str, description: str, *, repeats: bool = False) -> argparse.ArgumentParser:
    """Return a job's argument parser with `--lake` and the options of `metrics_of`.

    A job that `repeats` also gets `--once` (default) and `--every`, stored as seconds or None in `every`.
    """
    parser = argparse.ArgumentParser(prog=f"{name}.py", description=description)
    parser.add_argument("--lake", required=True, type=parse_place, help="the directory of the tables")
    parser.add_argument(
        "--metrics",
        type=Path,
        metavar="DIR",
        default=os.environ.get(DIRECTORY_VARIABLE) or None,
        help="a directory for a file with metrics, which node_exporter's textfile collector reads "
        f"(default: ${DIRECTORY_VARIABLE}, else none)",
    )
    if repeats:
        _add_repetition(parser)
    return parser


def metrics_of(name: str, parser: argparse.ArgumentParser, given: argparse.Namespace) -> JobMetrics:
    """Return the metrics of a job, exposed as the command line asks."""
    listen = getattr(given, "metrics_listen", None)
    if listen is not None and given.every is None:
        parser.error("--metrics-listen needs --every: a single run is over before anybody asks")
    return JobMetrics(name, given.metrics, listen)


def _add_repetition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-listen",
        type=address,
        metavar="HOST:PORT",
        help="with --every, answer scrapes of Prometheus here; a port alone is on 127.0.0.1",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", dest="every", action="store_const", const=None, help="one run (the default)")
    how.add_argument(
        "--every",
        type=period,
        metavar="TIME",
        help="a run every so often, such as 30s or 5m, until SIGTERM; nothing to do costs no JVM, and the "
        "session stays warm once there was something",
    )


def never() -> bool:
    """Never stops a job."""
    return False


class NextJob(NamedTuple):
    """A job that runs after another in the same process, whatever the other's outcome."""

    job: Callable[[Stop], Exit]
    metrics: JobMetrics


def run_job(
    job: Callable[[Stop], Exit], every: float | None, metrics: JobMetrics, then: Sequence[NextJob] = ()
) -> Exit:
    """Run a job and its followers once or every `every` seconds, and return the exit code.

    SIGTERM or SIGINT ends them after the current commit; a second signal ends them at once. A failed run is
    reported and repeated, except for wrong usage. A single run returns the gravest code of its jobs, repeated
    runs `LOSS` if any found one. Signals are handled in the main thread only.
    """
    try:
        with metrics.served():
            return _run_jobs([NextJob(job, metrics), *then], every)
    except ListenError as error:
        return _failed(metrics.name, Exit.FAILED, error)


def _run_jobs(jobs: Sequence[NextJob], every: float | None) -> Exit:
    lost, name = False, jobs[0].metrics.name
    with _stopped_by_signals() as stopping:
        while not stopping.is_set():
            due = time.monotonic() + (every or 0.0)
            left = takewhile(lambda job: job is jobs[0] or not stopping.is_set(), jobs)
            code = gravest([run_once(partial(job.job, stopping.is_set), job.metrics) for job in left])
            if every is None and stopping.is_set():
                say(name, "stopped")
            if every is None or code is Exit.USAGE:
                return code
            lost = lost or code is Exit.LOSS
            stopping.wait(max(0.0, due - time.monotonic()))
    say(name, "stopped")
    return Exit.LOSS if lost else Exit.WELL


def run_once(job: Callable[[], Exit], metrics: JobMetrics) -> Exit:
    """Run a job as `ended` and record the outcome."""
    begun = time.monotonic()
    code = Exit.FAILED
    metrics.begin()
    try:
        code = ended(metrics.name, job, metrics)
    finally:
        metrics.end(code, time.monotonic() - begun)
    return code


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; it also restores the previous handlers."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        stopping.set()
        restore()

    for number in _SIGNALS:
        before[number] = signal.signal(number, stop)
    try:
        yield stopping
    finally:
        restore()
