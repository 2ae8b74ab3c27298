"""Sealed batches on their way to the sender, and what each of their chunks waits for: its outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.contract import Clock
from agent.leaf.publish.accumulator import OpenBatch


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

    def leave(self, wait: asyncio.Future[Exception | None]) -> None:
        """Forget a wait that was given up: a sender that repeats a request waits again and again while the
        server is unreachable, and each wait holds on to what was handed in."""
        if wait in self._waits:
            self._waits.remove(wait)


class Deadlines:
    """Ends waits that have lasted too long with `TimeoutError`. They are looked at now and then, for a timer
    each would cost more than all the rest of a wait; so one may last for that much longer."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, asyncio.Future[Exception | None]]] = deque()

    def add(self, deadline: float, wait: asyncio.Future[Exception | None]) -> None:
        """End a wait at a deadline, in monotonic seconds. Nearly all deadlines come in their order: only who
        waited for room in memory comes behind those who repeat what is in flight."""
        waits, at = self._waits, len(self._waits)
        while at and waits[at - 1][0] > deadline:
            at -= 1
        waits.insert(at, (deadline, wait))

    def sweep(self, now: float) -> None:
        """End the waits whose deadline has passed, and forget those at the front that have ended."""
        waits = self._waits
        while waits and (waits[0][1].done() or waits[0][0] <= now):
            wait = waits.popleft()[1]
            if not wait.done():
                wait.set_exception(TimeoutError())


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """A batch that takes no more chunks, and when it was sealed."""

    draft: OpenBatch[Settlement]
    wall: int
    """In ns since 1970."""
    clock: Clock
    at: float
    """In the event loop's seconds."""


class SendQueue:
    """Sealed batches in the order in which they are sent. What waits for a server that cannot store is held
    back, and goes to the front once it can."""

    def __init__(self) -> None:
        self._sealed: deque[SealedBatch] = deque()
        self._held_back: list[SealedBatch] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sealed)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is queued or held back."""
        return not self._sealed and not self._held_back

    @property
    def oldest_at(self) -> float | None:
        """When the first in the queue was sealed, None where it is empty."""
        return self._sealed[0].at if self._sealed else None

    def put(self, sealed: Iterable[SealedBatch]) -> None:
        """Queue batches behind the others."""
        self._sealed.extend(sealed)
        if self._sealed:
            self.wake()

    def put_first(self, sealed: SealedBatch) -> None:
        """Queue a batch before the others."""
        self._sealed.appendleft(sealed)

    def take(self) -> SealedBatch:
        """The first in the queue, which must not be empty."""
        return self._sealed.popleft()

    def hold_back(self, sealed: SealedBatch) -> None:
        """Keep a batch until `release` lets it go."""
        self._held_back.append(sealed)

    def holds_back(self, cls: str) -> bool:
        """Whether a batch of a class is held back."""
        return any(sealed.draft.cls == cls for sealed in self._held_back)

    def release(self, refusal: Callable[[str], str | None]) -> None:
        """Queue before the others what is held back of classes for which there is no `refusal` any more."""
        waiting, self._held_back = self._held_back, []
        for sealed in reversed(waiting):
            if refusal(sealed.draft.cls) is None:
                self._sealed.appendleft(sealed)
            else:
                self._held_back.insert(0, sealed)
        if waiting:
            self.wake()

    def drop_withdrawn(self) -> None:
        """Drop batches at the front of which nothing wants to be sent any more."""
        while self._sealed and not self._sealed[0].draft.live():
            self._sealed.popleft()
        self.wake()

    def drain(self) -> list[SealedBatch]:
        """Take all, what is held back first."""
        sealed = [*self._held_back, *self._sealed]
        self._held_back.clear()
        self._sealed.clear()
        return sealed

    def readings(self, cls: str) -> int:
        """The readings of a class that are queued or held back, counted one by one."""
        batches = [*self._held_back, *self._sealed]
        return sum(sealed.draft.live_readings for sealed in batches if sealed.draft.cls == cls)

    def wake(self) -> None:
        """Let the sender look again."""
        self._changed.set()

    async def changed(self) -> None:
        """Return at the next `wake`."""
        self._changed.clear()
        await self._changed.wait()
