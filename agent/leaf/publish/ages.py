"""How long ago something was sealed, where the wall clock may have been set since. Pure."""

from __future__ import annotations

from agent.base.clock import Instant


class Ages:
    """Ages of instants, asked from the newest to the oldest, in seconds before `now`.

    They go by the time in which the machine ran: within a boot that is monotonic time, and an earlier boot
    ran at least until its last instant. How long the machine was off only a wall clock can tell; it is
    believed where the kernel called it synchronised both times. So an age may be too small, never too large.
    """

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._boot, self._monotonic = now.clock.boot, now.clock.monotonic
        self._ran = 0

    def of(self, then: Instant) -> float:
        """The age of an instant that is not newer than those asked before."""
        clock = then.clock
        if clock.boot == self._boot:
            self._ran += max(0, self._monotonic - clock.monotonic)
            self._monotonic = min(self._monotonic, clock.monotonic)
        else:
            self._ran += self._monotonic
            self._boot, self._monotonic = clock.boot, clock.monotonic
        believed = clock.synchronised and self._now.clock.synchronised
        by_wall = self._now.wall - then.wall if believed else 0
        return max(self._ran, by_wall) / 1e9
