"""Wait for a condition with a bound that a busy machine keeps: `until` in a loop, `wait_for` in a thread; and
a thread that looks at something as long as a context lasts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

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


class Follower(Protocol):
    """Looks again and again."""

    def follow(self) -> None:
        """Look until told to end."""

    def end(self) -> None:
        """Look no more; called from another thread."""


_Follower = TypeVar("_Follower", bound=Follower)


@contextmanager
def following(one: _Follower) -> Iterator[_Follower]:
    """`one` follows as long as the context lasts."""
    thread = threading.Thread(target=one.follow, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.end()
        thread.join()
