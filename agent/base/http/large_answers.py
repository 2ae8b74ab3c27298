"""Builds large answers in pieces, shares them between requests, and sends blocks.

This runs in the event loop; a thread would hold Python's lock while it waits for a busy CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from agent.base.wait import Pacer

_BLOCK: Final = 65_536
"""Bytes per block."""
_CHEAP: Final = 0.05
"""CPU seconds below which an answer is not shared."""
_TIMES: Final = 4
"""Keeps an answer this many times its build time, so requests take at most a fifth of the loop."""

T = TypeVar("T")


async def blocks_of(pieces: Iterable[bytes]) -> list[bytes]:
    """Join pieces to blocks, yielding to the loop."""
    blocks: list[bytes] = []
    held, size, pacer = list[bytes](), 0, Pacer()
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            blocks.append(b"".join(held))
            held, size = [], 0
        await pacer.give_way()
    return [*blocks, b"".join(held)]


class Shared(Generic[T]):
    """Shares the result of `make` during its build, and afterwards if it was slow."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._kept: tuple[T] | None = None

    async def get(self) -> T:
        """Return a kept or new result. Errors of `make` are raised and not kept."""
        async with self._making:
            if self._kept is not None:
                return self._kept[0]
            # The time that this thread ran: what is cheap stays so on a busy machine.
            began = time.thread_time()
            made = await self._make()
            spent = time.thread_time() - began
            if spent >= _CHEAP:
                self._kept = (made,)
                asyncio.get_running_loop().call_later(_TIMES * spent, self._forget)
            return made

    def _forget(self) -> None:
        self._kept = None
