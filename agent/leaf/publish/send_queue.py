"""Queues sealed batches for the sender."""

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
    """A sealed batch with its time."""

    draft: OpenBatch[Settlement]
    wall: int
    """In ns since 1970."""
    clock: Clock
    at: float
    """In event loop seconds."""


class SendQueue:
    """Sealed batches in sending order; those for a server that can't store are held back and later
    go first.
    """

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
        """Return the first batch's seal time, or None."""
        return self._sealed[0].at if self._sealed else None

    def put(self, sealed: Iterable[SealedBatch]) -> None:
        self._sealed.extend(sealed)
        if self._sealed:
            self.wake()

    def put_first(self, sealed: SealedBatch) -> None:
        self._sealed.appendleft(sealed)

    def take(self) -> SealedBatch:
        """Return the first batch; the queue must not be empty."""
        return self._sealed.popleft()

    def hold_back(self, sealed: SealedBatch) -> None:
        self._held_back.append(sealed)

    def holds_back(self, cls: str) -> bool:
        return any(sealed.draft.cls == cls for sealed in self._held_back)

    def release(self, refusal: Callable[[str], str | None]) -> None:
        """Queue held-back batches of classes without `refusal` first."""
        waiting, self._held_back = self._held_back, []
        for sealed in reversed(waiting):
            if refusal(sealed.draft.cls) is None:
                self._sealed.appendleft(sealed)
            else:
                self._held_back.insert(0, sealed)
        if waiting:
            self.wake()

    def drop_withdrawn(self) -> None:
        """Drop leading batches that are wholly withdrawn."""
        while self._sealed and not self._sealed[0].draft.live():
            self._sealed.popleft()
        self.wake()

    def drain(self) -> list[SealedBatch]:
        """Take everything, held-back batches first."""
        sealed = [*self._held_back, *self._sealed]
        self._held_back.clear()
        self._sealed.clear()
        return sealed

    def readings(self, cls: str) -> int:
        """Return a class's queued and held-back readings."""
        batches = [*self._held_back, *self._sealed]
        return sum(sealed.draft.live_readings for sealed in batches if sealed.draft.cls == cls)

    def wake(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next `wake`."""
        self._changed.clear()
        await self._changed.wait()


class Batches:
    """Gathering batches of all inputs and classes, queued when full or due."""

    def __init__(self, limits: BatchLimits, clock: Look) -> None:
        self._lingers = limits.lingers
        self._clock = clock
        self._accumulator: Accumulator[Settlement] = Accumulator(limits)
        self.queue = SendQueue()

    def add(self, key: Key, entry: PendingChunk[Settlement]) -> None:
        """Add a chunk to the open batch."""
        self._enqueue(self._accumulator.add(key, entry, loop_time()))
        batch = entry.batch
        if batch is not None and batch.entries[0] is entry:
            self._seal_when_due(key)

    def settled(self, entry: PendingChunk[Settlement]) -> None:
        """Note a chunk's outcome, which may free the next batch."""
        if (key := self._accumulator.settled(entry)) is not None:
            self._seal_when_due(key)

    def flush(self) -> int:
        """Seal everything; returns the number of batches."""
        batches = self._accumulator.flush()
        self._enqueue(batches)
        return len(batches)

    def seal_overdue(self) -> None:
        """Seal batches that waited too long for the previous."""
        self._enqueue(self._accumulator.overdue(loop_time()))

    def override_linger(self, seconds: float | None) -> None:
        """Override all lingers, None for the configured ones."""
        self._lingers.override = seconds

    def held(self, cls: str) -> int:
        """Return a class's unsent readings."""
        drafts = (draft for draft in self._accumulator.open_batches() if draft.cls == cls)
        return self.queue.readings(cls) + sum(draft.live_readings for draft in drafts)

    def _seal_when_due(self, key: Key) -> None:
        """Seal the batch of `key` when due; chunks of the same loop turn join it."""
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
