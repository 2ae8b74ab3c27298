"""A job as an operator starts it, a process of its own: how long it takes, and the most memory of it with all
that it starts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

_LOOK_SECONDS: Final = 0.25
"""Looking costs the process that is looked at some milliseconds."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job; pages that its processes share count once."""

    seconds: float
    megabytes: float


def run_job(job: str, *options: str) -> JobRun:
    """Run a job on the cores of this machine. Raises `RuntimeError` unless it ends well."""
    return run_command(job, [sys.executable, "-m", f"hub_jobs.{job}", *options])


def run_command(
    job: str, command: Sequence[str], env: Mapping[str, str] | None = None, beside: Sequence[int] = ()
) -> JobRun:
    """Run a job by a command; `beside` are processes whose memory is the job's, too."""
    began, most, ended = time.monotonic(), 0.0, threading.Event()
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=said)

        def watch() -> None:
            nonlocal most
            while not ended.wait(_LOOK_SECONDS):
                most = max(most, sum(map(_megabytes, (running.pid, *beside))))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            code = running.wait()
        finally:
            running.kill()
            ended.set()
            watching.join()
        seconds = time.monotonic() - began
        if code:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{job} ended with {code}: {''.join(last)}")
    return JobRun(seconds, most)


def _megabytes(pid: int) -> float:
    """Of a process and its children; 0 where one of them ends meanwhile."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return float(sum(member.memory_full_info().pss for member in family)) / 1e6
    except psutil.Error:
        return 0.0
