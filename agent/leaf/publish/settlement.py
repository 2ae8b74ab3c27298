"""The outcome of a chunk, and the waits for it."""

from __future__ import annotations

import asyncio
from collections import deque


class Settlement:
    """The outcome of one chunk: None for stored, or why it is not, or not known to be. Several may wait for
    it, the senders of one request and its repeats; one that gives up takes nothing from the others."""

    __slots__ = ("_done", "_outcome", "_waits")

    def __init__(self) -> None:
        self._done = False
        self._outcome: Exception | None = None
        self._waits: list[asyncio.Future[Exception | None]] = []

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done

    def result(self) -> Exception | None:
        """The outcome, once it is known."""
        assert self._done
        return self._outcome

    def set_result(self, outcome: Exception | None) -> None:
        """Say the outcome, once, to all that wait."""
        assert not self._done
        self._done, self._outcome = True, outcome
        for wait in self._waits:
            if not wait.done():
                wait.set_result(outcome)
        self._waits.clear()

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Exception | None]:
        """A wait of its own for an outcome that is not known yet."""
        wait: asyncio.Future[Exception | None] = loop.create_future()
        self._waits.append(wait)
        return wait


class Deadlines:
    """Ends waits that have lasted too long with `TimeoutError`. They are looked at now and then, for a timer
    each would cost more than all the rest of a wait; so one may last for that much longer."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, asyncio.Future[Exception | None]]] = deque()

    def add(self, deadline: float, wait: asyncio.Future[Exception | None]) -> None:
        """End a wait at a deadline, in monotonic seconds. Deadlines come in their order."""
        self._waits.append((deadline, wait))

    def sweep(self, now: float) -> None:
        """End the waits whose deadline has passed, and forget those at the front that have ended."""
        waits = self._waits
        while waits and (waits[0][1].done() or waits[0][0] <= now):
            wait = waits.popleft()[1]
            if not wait.done():
                wait.set_exception(TimeoutError())
