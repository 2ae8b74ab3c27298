"""The machine's clocks: wall, monotonic, boot id, and whether the kernel calls the wall clock synchronised.
Every timestamp that the agent stores comes from `machine`."""

from __future__ import annotations

import ctypes
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from agent.contract import Clock

_TIME_ERROR: Final = 5
_LEAP_STATES: Final = (1, 2, 3, 4)
"""A leap second is pending, in progress, or just over (adjtimex(2))."""
_TIMEX_BYTES: Final = 208
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_NS: Final = 10**9
_APART_NS: Final = 2_000_000
_TRIES: Final = 5
_MOVED_NS: Final = 5_000_000


class Machine(Protocol):
    """The clocks of one machine."""

    @property
    def boot(self) -> str:
        """The kernel's boot id."""

    def wall(self) -> int:
        """Ns since 1970."""

    def monotonic(self) -> int:
        """Ns of `CLOCK_BOOTTIME`: like the wall clock it runs while the machine sleeps and is slewed by NTP,
        so that the two drift apart only when the wall clock is stepped."""

    def kernel(self) -> int:
        """The state of the kernel's clock, as adjtimex(2) returns it."""


class ThisMachine:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self.boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(uuid.uuid4())
        self._libc = ctypes.CDLL(None)

    def wall(self) -> int:
        return time.time_ns()

    def monotonic(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def kernel(self) -> int:
        """The state of the kernel's clock; with no mode set adjtimex(2) only reads."""
        return int(self._libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))


machine: Machine = ThisMachine()


def wall_ns() -> int:
    """The wall clock in ns since 1970, with which the agent stamps readings."""
    return machine.wall()


class Instant(Struct, frozen=True):
    """All clocks at one moment."""

    wall: int
    """Ns since 1970."""
    clock: Clock
    """The clock as a batch carries it."""
    leap: bool = False
    """Whether a leap second is pending, in progress, or just over."""
    apart: int = 0
    """Ns between the first and the last reading of the clocks."""

    @property
    def offset(self) -> int:
        """By how much the wall clock is ahead of the monotonic clock, in ns."""
        return self.wall - self.clock.monotonic


Look = Callable[[], Instant]


class ClockReader:
    """Reads the clocks. It asks the kernel about synchronisation once a second, and at once when the wall
    clock was stepped, for the last answer was about the clock before the step."""

    def __init__(self) -> None:
        self._asked = -_ASK_NS
        self._state = _TIME_ERROR
        self._offset = 0

    def look(self) -> Instant:
        """The clocks now. If the process was held up in between, they are read again, up to five times."""
        best = (0, 0, -1)
        for _ in range(_TRIES):
            before = machine.monotonic()
            wall = machine.wall()
            apart = machine.monotonic() - before
            if best[2] < 0 or apart < best[2]:
                best = (wall, before, apart)
            if apart < _APART_NS:
                break
        wall, monotonic, apart = best
        offset = wall - monotonic
        if monotonic - self._asked >= _ASK_NS or abs(offset - self._offset) > _MOVED_NS:
            self._asked, self._state, self._offset = monotonic, machine.kernel(), offset
        synchronised = 0 <= self._state < _TIME_ERROR
        leap = self._state in _LEAP_STATES
        return Instant(wall, Clock(synchronised, machine.boot, monotonic), leap, apart)

    def read(self) -> Clock:
        return self.look().clock
