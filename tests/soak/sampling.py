"""What the processes of an environment hold, sampled every few seconds, each life of a process by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import psutil

from tests.faults.world.machine import Machine, Program
from tests.harness.wait import following
from tests.soak.flat import Point
from tests.soak.inside import inside

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
