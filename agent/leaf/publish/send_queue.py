"""Batches from the moment that they are sealed until the sender takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from msgspec import Struct

from agent.base.clock import Look
from agent.base.wait import loop_time
from agent.contract import Clock
from agent.leaf.publish.accumulator import Accumulator, BatchLimits, Key, OpenBatch, PendingChunk
from agent.leaf.publish.settlement import Settlement


class SealedBatch(Struct, frozen=True):
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


class Batches:
    """The batches of all inputs and classes while chunks gather in them. Each is queued once it is full, or
    is due and waits for none before it."""

    def __init__(self, limits: BatchLimits, clock: Look) -> None:
        self._lingers = limits.lingers
        self._clock = clock
        self._accumulator: Accumulator[Settlement] = Accumulator(limits)
        self.queue = SendQueue()

    def add(self, key: Key, entry: PendingChunk[Settlement]) -> None:
        """Put a chunk into the open batch of an input and class."""
        self._enqueue(self._accumulator.add(key, entry, loop_time()))
        batch = entry.batch
        if batch is not None and batch.entries[0] is entry:
            self._seal_when_due(key)

    def settled(self, entry: PendingChunk[Settlement]) -> None:
        """The outcome of a chunk is known: the batch behind its own may wait for it no more."""
        if (key := self._accumulator.settled(entry)) is not None:
            self._seal_when_due(key)

    def flush(self) -> int:
        """Seal what has come, without waiting for more; returns how many batches that are."""
        batches = self._accumulator.flush()
        self._enqueue(batches)
        return len(batches)

    def seal_overdue(self) -> None:
        """Seal what has waited too long for the batch before it."""
        self._enqueue(self._accumulator.overdue(loop_time()))

    def override_linger(self, seconds: float | None) -> None:
        """How long every batch waits for more readings from now on; None for what is configured."""
        self._lingers.override = seconds

    def held(self, cls: str) -> int:
        """The readings of a class that were not sent yet, counted one by one."""
        drafts = (draft for draft in self._accumulator.open_batches() if draft.cls == cls)
        return self.queue.readings(cls) + sum(draft.live_readings for draft in drafts)

    def _seal_when_due(self, key: Key) -> None:
        """Seal the open batch of `key` when it is due, unless it waits for the one before it; what comes in
        the same turn of the event loop comes along."""
        due = self._accumulator.due(key)
        if due is None:
            return
        loop = asyncio.get_running_loop()
        if due <= loop_time():
            loop.call_soon(self._seal, key, due)
        else:
            loop.call_at(due, self._seal, key, due)

    def _seal(self, key: Key, due: float) -> None:
        # A timer of uvloop counts milliseconds and may fire a fraction of one before it is due.
        if (batch := self._accumulator.seal(key, max(due, loop_time()))) is not None:
            self._enqueue([batch])

    def _enqueue(self, batches: list[OpenBatch[Settlement]]) -> None:
        if not batches:
            return  # most chunks seal none
        now = loop_time()
        instants = [self._clock() for _ in batches]
        self.queue.put(
            SealedBatch(batch, instant.wall, instant.clock, now)
            for batch, instant in zip(batches, instants, strict=True)
        )
