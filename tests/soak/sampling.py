"""What the processes of a world hold, looked at every few seconds: each life of a process by itself, since a
new one begins anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.faults.world.machine import Machine, Program
from tests.soak.flat import Point

PERIOD_SECONDS = 5.0
ALLOWANCES = {"memory_mib": 8.0, "descriptors": 8.0, "threads": 3.0, "tasks": 8.0, "disk_mib": 24.0}
"""What is sampled, and by how much it may grow where a tenth of it is less."""
SERVER_MEMORY_MIB = 48.0
"""The same of a server: its heap is collected late, and it keeps blocks of messages that it has just read."""


def allowance(who: str, measure: str) -> float:
    """By how much something may grow."""
    if measure == "memory_mib" and who.startswith("the server"):
        return SERVER_MEMORY_MIB
    return ALLOWANCES[measure]


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

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.began = time.monotonic()
        self.series: dict[tuple[str, str], Series] = {}
        self._machines = machines
        self._ending = threading.Event()

    def follow(self) -> None:
        """Look until told to end."""
        while not self._ending.wait(PERIOD_SECONDS):
            for machine in self._machines:
                for program in (machine.agent, machine.nats):
                    with suppress(psutil.Error):
                        self._process(program)
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
            found = {
                "memory_mib": process.memory_info().rss / 2**20,
                "descriptors": float(process.num_fds()),
                "threads": float(process.num_threads()),
            }
        for measure, value in found.items():
            self._note(program.name, measure, pid, value)

    def _tasks(self, machine: Machine) -> None:
        row = next(one for one in machine.metrics().splitlines() if one.startswith("petiole_tasks "))
        self._note(machine.agent.name, "tasks", machine.agent.pid or 0, float(row.split()[1]))

    def _note(self, who: str, measure: str, life: int, value: float) -> None:
        one = self.series.setdefault((who, measure), Series(who, measure))
        one.lives.setdefault(life, []).append((time.monotonic() - self.began, value))


@contextmanager
def samples(machines: Sequence[Machine]) -> Iterator[Samples]:
    """Looks at these machines as long as the context lasts."""
    one = Samples(machines)
    thread = threading.Thread(target=one.follow, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.end()
        thread.join()


def _size(directory: Path) -> int:
    """Bytes on the disk below a directory."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
