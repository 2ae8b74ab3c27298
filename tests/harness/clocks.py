"""A machine's clocks as a test moves them; the real ones are never set."""

from __future__ import annotations

import time

SYNCHRONISED, UNSYNCHRONISED = 0, 5
SECOND = 10**9


class FakeMachine:
    """Clocks that run by themselves, `behind` the true time by so many ns until they are stepped."""

    def __init__(self, behind: int = 0, boot: str = "boot-1", state: int = UNSYNCHRONISED) -> None:
        self.boot, self.behind, self.state = boot, behind, state

    def wall(self) -> int:
        """Ns since 1970, as the machine has it."""
        return time.time_ns() - self.behind

    def monotonic(self) -> int:
        """Ns since the start."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def kernel(self) -> int:
        """The state of the kernel's clock."""
        return self.state
