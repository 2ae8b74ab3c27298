"""The waits of `agent.testing`, and a thread that looks at something as long as a context lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from agent.testing.agent_process import WAIT_SECONDS, until, wait_for

__all__ = ["SERVER_RETRY_SECONDS", "WAIT_SECONDS", "ended", "following", "until", "wait_for"]

SERVER_RETRY_SECONDS: Final = 150.0
"""For what nats-server asks another server for by itself. A question for a mirror or source is lost while the
link is not up; it waits 5 s for an answer (30 s without a durable consumer), and then 10 s longer each time
before it asks again."""


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


async def ended(process: asyncio.subprocess.Process, seconds: float) -> tuple[int, str]:
    """The exit code of a process and what it said; it is killed if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()
