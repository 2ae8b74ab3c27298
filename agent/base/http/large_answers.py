"""Large answers of an HTTP listener: made a piece at a time, shared by simultaneous requests, sent in blocks.

They are made in the event loop and not in a thread: on a busy machine a thread waits for a processor while it
holds Python's lock, and the loop stands still meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from agent.base.wait import Pacer

_BLOCK: Final = 65_536
"""Bytes that are sent at a time."""
_CHEAP: Final = 0.05
"""An answer that takes fewer CPU seconds is made for each request."""
_TIMES: Final = 4
"""An answer is kept this many times as long as it took to make, so requests take a fifth of the loop at
most."""

T = TypeVar("T")


async def blocks_of(pieces: Iterable[bytes]) -> list[bytes]:
    """The pieces of a generator that makes them, joined to blocks; the loop runs meanwhile."""
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
    """What `make` returns, shared while it is being made and, if that takes long, for some time after."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._kept: tuple[T] | None = None

    async def get(self) -> T:
        """The answer that is kept, or a new one. Raises what `make` raises; an error is not kept."""
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
