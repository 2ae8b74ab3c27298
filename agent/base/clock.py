"""Reads the machine's clocks: wall, monotonic, boot id, and kernel synchronisation. All stored times use
`machine`.
"""

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
"""Leap second pending, in progress or just over (adjtimex(2))."""
_TIMEX_BYTES: Final = 208
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_NS: Final = 10**9
_APART_NS: Final = 2_000_000
_TRIES: Final = 5
_MOVED_NS: Final = 5_000_000


class Machine(Protocol):
    """The clocks of a machine."""

    @property
    def boot(self) -> str:
        """Return the kernel's boot id."""

    def wall(self) -> int:
        """Return ns since 1970."""

    def monotonic(self) -> int:
        """Return ns of `CLOCK_BOOTTIME`, which like the wall clock runs during sleep and is slewed, but never
        steps.
        """

    def kernel(self) -> int:
        """Return the kernel clock's state by adjtimex(2)."""


class ThisMachine:
    def __init__(self) -> None:
        self.boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(uuid.uuid4())
        self._libc = ctypes.CDLL(None)

    def wall(self) -> int:
        return time.time_ns()

    def monotonic(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def kernel(self) -> int:
        """Return the kernel clock's state; adjtimex(2) without mode only reads."""
        return int(self._libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))


machine: Machine = ThisMachine()


def wall_ns() -> int:
    """Return the wall clock in ns since 1970, for stamps."""
    return machine.wall()


class Instant(Struct, frozen=True):
    """All clocks at one moment."""

    wall: int
    """Ns since 1970."""
    clock: Clock
    """The clock in a batch's form."""
    leap: bool = False
    """Whether a leap second is pending, in progress or just over."""
    apart: int = 0
    """Ns between first and last clock read."""

    @property
    def offset(self) -> int:
        """Wall minus monotonic clock in ns."""
        return self.wall - self.clock.monotonic


Look = Callable[[], Instant]


class ClockReader:
    """Reads the clocks. Asks the kernel for synchronisation every second and after each wall clock step."""

    def __init__(self) -> None:
        self._asked = -_ASK_NS
        self._state = _TIME_ERROR
        self._offset = 0

    def look(self) -> Instant:
        """Return the clocks; repeats up to five times if interrupted."""
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
