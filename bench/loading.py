"""Drives `bench.load`, the HTTP load in a process of its own, and reads the agent's own counters."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Loading:
    """A load that runs."""

    process: subprocess.Popen[str]

    def answered(self) -> int:
        """How many requests were answered as stored until now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def loading(port: int, connections: int, readings: int, form: str) -> Iterator[Loading]:
    """Send requests of so many readings to an agent's port as long as the context lasts."""
    command = [sys.executable, "-m", "bench.load", str(port), str(connections), str(readings), form]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Loading(process)
        assert process.stdin is not None
        process.stdin.close()


def stored(admin_port: int, name: str) -> float:
    """How many readings of an agent's input are stored until now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    wanted = f'petiole_stored_readings_total{{class="normal",input="{name}"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has used until now, user and system, all threads."""
    times = process.cpu_times()
    return times.user + times.system
