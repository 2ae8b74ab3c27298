"""What bounds the publish path: bytes in memory, and readings a second."""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """`limit` bytes; a single request above the limit is let through alone rather than never."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used = 0

    async def acquire(self, size: int) -> None:
        """Take `size` bytes, waiting for room. When cancelled nothing is taken."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._wake()
            else:
                self.release(size)
            raise

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used -= size
        self._wake()

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self._limit

    def _wake(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self.used += size
                turn.set_result(None)
            self._waiting.popleft()


class RateLimit:
    """A bucket that holds what may come in one second. What is larger is let in when the bucket is full, and
    paid for afterwards. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._level = 0.0
        self._at = float("-inf")

    def limit(self, readings_per_second: float | None) -> None:
        """From now on no more than this; None lifts the limit."""
        self._rate = readings_per_second
        self._level, self._at = 0.0, float("-inf")

    def take(self, readings: int, now: float) -> float:
        """Take room for so many readings: 0 when there is, otherwise the seconds after which to ask again."""
        if self._rate is None:
            return 0.0
        # An infinite wait has filled it.
        filled = self._level + (now - self._at) * self._rate
        self._level, self._at = min(self._rate, filled), now
        needed = min(float(readings), self._rate)
        if self._level < needed:
            return (needed - self._level) / self._rate
        self._level -= readings
        return 0.0
