"""Many requests, not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

_AT_ONCE: Final = 32

Given = TypeVar("Given")
Found = TypeVar("Found")


async def gathered(ask: Callable[[Given], Awaitable[Found]], of: Iterable[Given]) -> list[Found]:
    """What `ask` answers for each, in their order, with at most 32 under way. Raises what one of them
    raises."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(given: Given) -> Found:
        async with places:
            return await ask(given)

    return await asyncio.gather(*(one(given) for given in of))
