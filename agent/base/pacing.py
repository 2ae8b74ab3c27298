"""Giving way: long work on one body is done in pieces, so that the event loop is never held up for long."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SPAN: Final = 0.005
"""Seconds of work after which the loop has its turn. A turn after each piece would cost more than a piece."""


class Pacer:
    """The turns of one task that works in pieces."""

    def __init__(self) -> None:
        self._due = time.perf_counter() + SPAN

    async def give_way(self) -> None:
        """Let the loop run if this task has worked for `SPAN`; to be called after each piece."""
        if time.perf_counter() >= self._due:
            await asyncio.sleep(0)
            self._due = time.perf_counter() + SPAN
