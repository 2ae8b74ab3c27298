"""A bound on bytes in memory that makes whoever exceeds it wait, first come first served."""

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
