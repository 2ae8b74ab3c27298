"""Wait for a condition with a bound that a busy machine keeps: `until` in a loop, `wait_for` in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

WAIT_SECONDS: Final = 90.0
_ANY: Final = "the condition holds"
_POLL_SECONDS: Final = 0.01


async def until(
    holds: Callable[[], bool | Awaitable[bool]], condition: str = _ANY, seconds: float = WAIT_SECONDS
) -> None:
    """Return when a plain or async check holds. Fails the test with the `condition` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {condition}"
        await asyncio.sleep(_POLL_SECONDS)


def wait_for(holds: Callable[[], bool], condition: str = _ANY, seconds: float = WAIT_SECONDS) -> None:
    """Return when a check holds. Fails the test with the `condition` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {condition}"
        time.sleep(_POLL_SECONDS)
