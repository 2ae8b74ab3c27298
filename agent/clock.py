"""The machine's clocks as a batch tells them: wall, monotonic, kernel boot id, and whether the kernel calls
the wall clock synchronised."""

from __future__ import annotations

import ctypes
import time
import uuid
from pathlib import Path

from agent.contract import Clock

_TIME_ERROR = 5
_TIMEX_BYTES = 208
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockReader:
    """Reads the clocks; the kernel is asked about synchronisation at most once a second (adjtimex(2) with no
    mode set only reads, and its return value TIME_ERROR means "not synchronised")."""

    def __init__(self) -> None:
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(uuid.uuid4())
        self._libc = ctypes.CDLL(None)
        self._asked = float("-inf")
        self._synchronised = False

    def read(self) -> Clock:
        """The clock now."""
        now = time.monotonic_ns()
        if now - self._asked > 1e9:
            self._asked = now
            self._synchronised = self._ask_kernel()
        return Clock(self._synchronised, self._boot, now)

    def _ask_kernel(self) -> bool:
        state = int(self._libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
        return 0 <= state < _TIME_ERROR
