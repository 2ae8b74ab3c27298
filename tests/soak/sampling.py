"""What the processes of an environment hold, sampled every few seconds, each life of a process by itself; a
server tells of its own memory and of what it stores over its monitoring port."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from tests.faults.world.machine import Machine, Program
from tests.harness.wait import following
from tests.soak.flat import Point

_ANSWER_SECONDS = 2.0
_MIB = 2**20


def monitored(ports: Path) -> str:
    """The line of `[nats]` with which a server listens on a port that the system chooses, and tells it in a
    file in this directory. Its own process does that alone; petiole never asks it over HTTP."""
    return f'extra = {{ http = "127.0.0.1:-1", ports_file_dir = {json.dumps(str(ports))} }}'


def inside(ports: Path, pid: int) -> dict[str, float]:
    """Of the server with this process id, in MiB: what is alive in its heap, what the heap takes with what is
    not collected yet, what it keeps free of it, and what its streams hold. Raises `OSError`, `ValueError` and
    `LookupError` where it does not answer."""
    found = next(ports.glob(f"*_{pid}.ports"), None)
    if found is None:
        raise LookupError(f"no server {pid} tells its port")
    address = json.loads(found.read_text())["monitoring"][0]
    heap = _read(f"{address}/debug/vars")["memstats"]
    return {
        # By default Go collects when the heap is twice what the last collection left, but not below 4 MiB
        # (https://go.dev/doc/gc-guide#GOGC); so this does not rise and fall with the collections.
        "live_mib": heap["NextGC"] / 2 / _MIB,
        "heap_mib": heap["HeapInuse"] / _MIB,
        "free_mib": (heap["HeapIdle"] - heap["HeapReleased"]) / _MIB,
        "stored_mib": _read(f"{address}/jsz")["storage"] / _MIB,
    }


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
        return json.load(answer)


PERIOD_SECONDS = 5.0
ALLOWANCES = {
    "memory_mib": 8.0,
    "live_mib": 4.0,
    "descriptors": 8.0,
    "threads": 3.0,
    "tasks": 8.0,
    "disk_mib": 24.0,
}
"""What is judged, and by how much it may grow where a tenth of it is less. The rest is looked at only."""


SHOWN = {
    "memory_mib": "memory (RSS), MiB",
    "live_mib": "alive in a server's heap, MiB",
    "stored_mib": "held by a server's streams, MiB",
    "disk_mib": "on a machine's disk, MiB",
    "descriptors": "descriptors",
    "threads": "threads",
    "tasks": "tasks of an agent",
}
"""What the picture has, from above."""


@dataclass(slots=True)
class Series:
    """What was sampled of one measure of one process, or the disk of one machine."""

    who: str
    measure: str
    lives: dict[int, list[Point]] = field(default_factory=dict)

    @property
    def longest(self) -> list[Point]:
        """The samples of its longest life."""
        return max(self.lives.values(), key=lambda points: points[-1][0] - points[0][0], default=[])

    @property
    def points(self) -> list[Point]:
        """All samples, in the order of time."""
        return sorted(point for points in self.lives.values() for point in points)


class Samples:
    """The series of all machines, filled by a thread."""

    def __init__(self, machines: Sequence[Machine], ports: Path) -> None:
        self.began = time.monotonic()
        self.series: dict[tuple[str, str], Series] = {}
        self._machines, self._ports = machines, ports
        self._ending = threading.Event()

    def follow(self) -> None:
        """Look until told to end."""
        while not self._ending.wait(PERIOD_SECONDS):
            for machine in self._machines:
                for program in (machine.agent, machine.nats):
                    with suppress(psutil.Error):
                        self._process(program)
                with suppress(OSError, ValueError, LookupError, HTTPException):
                    self._server(machine.nats)
                self._note(machine.member.domain, "disk_mib", 0, _size(machine.member.state) / 2**20)
                with suppress(OSError, ValueError, StopIteration):
                    self._tasks(machine)

    def end(self) -> None:
        """Look no more."""
        self._ending.set()

    def _process(self, program: Program) -> None:
        pid = program.pid
        if pid is None:
            return
        process = psutil.Process(pid)
        with process.oneshot():
            memory = process.memory_info()
            found = {
                "memory_mib": memory.rss / 2**20,
                # Without the pages of files, which the system takes back when it likes.
                "own_mib": (memory.rss - memory.shared) / 2**20,
                "descriptors": float(process.num_fds()),
                "threads": float(process.num_threads()),
            }
        for measure, value in found.items():
            self._note(program.name, measure, pid, value)

    def _server(self, program: Program) -> None:
        pid = program.pid
        if pid is not None:
            for measure, value in inside(self._ports, pid).items():
                self._note(program.name, measure, pid, value)

    def _tasks(self, machine: Machine) -> None:
        row = next(one for one in machine.metrics().splitlines() if one.startswith("petiole_tasks "))
        self._note(machine.agent.name, "tasks", machine.agent.pid or 0, float(row.split()[1]))

    def _note(self, who: str, measure: str, life: int, value: float) -> None:
        one = self.series.setdefault((who, measure), Series(who, measure))
        one.lives.setdefault(life, []).append((time.monotonic() - self.began, value))


@contextmanager
def samples(machines: Sequence[Machine], ports: Path) -> Iterator[Samples]:
    """Looks at these machines as long as the context lasts; their servers tell their `ports` there."""
    with following(Samples(machines, ports)) as one:
        yield one


def _size(directory: Path) -> int:
    """Bytes on the disk below a directory."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
