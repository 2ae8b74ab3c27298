"""Collects chunks into drafts of batches by size, count and linger, and queues what is sealed for the sender.
The caller brings the time.

A chunk is never split: what a sender was promised together is stored together. So a draft may exceed the
limits only when a single chunk does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from agent.contract import Clock
from agent.leaf.intake import Chunk
from agent.leaf.publish.idempotency import Settlement

MAX_REQUESTS = 256
"""Idempotency keys in one batch: they travel in a header, which must stay small compared with the payload."""

Waiter = TypeVar("Waiter")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a draft is sealed: at `bytes` of NDJSON, `readings`, or `linger` seconds after its first chunk."""

    bytes: int
    readings: int
    linger: float


@dataclass(slots=True)
class PendingChunk(Generic[Waiter]):
    """A chunk and what waits for its outcome."""

    chunk: Chunk
    waiter: Waiter
    held: int = 0
    """Bytes of the memory budget that it takes."""
    sent: bool = False
    """Its batch has a number."""
    withdrawn: bool = False
    """It is left out of its batch; only before it is sent."""
    admitted: bool = False
    """Its readings count as accepted."""
    promised: bool = False
    """It was acknowledged as accepted, and no sender waits for it."""


@dataclass(slots=True)
class OpenBatch(Generic[Waiter]):
    """A batch in the making: chunks of one input and class, in the order in which they came, all of them
    readings or all of them `dead` letters."""

    input: str
    cls: str
    due: float
    dead: bool = False
    entries: list[PendingChunk[Waiter]] = field(default_factory=list)
    bytes: int = 0
    readings: int = 0
    requests: int = 0

    def live(self) -> list[PendingChunk[Waiter]]:
        """The entries that still want to be sent."""
        return [entry for entry in self.entries if not entry.withdrawn]

    def send(self) -> list[PendingChunk[Waiter]]:
        """The entries of the batch that is made of this draft: from now on none can be withdrawn."""
        entries = self.live()
        for entry in entries:
            entry.sent = True
        return entries

    def take_unpromised(self) -> list[PendingChunk[Waiter]]:
        """Take out what can still be refused; what its sender was promised stays."""
        entries = self.live()
        self.entries = [entry for entry in entries if entry.promised]
        return [entry for entry in entries if not entry.promised]

    @property
    def live_readings(self) -> int:
        """How many readings still want to be sent, counted one by one."""
        return sum(entry.chunk.count for entry in self.live())


class Accumulator(Generic[Waiter]):
    """The open draft of each (input, class)."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._open: dict[Key, OpenBatch[Waiter]] = {}

    def linger(self, seconds: float) -> None:
        """How long drafts that are opened from now on may wait."""
        self._limits = replace(self._limits, linger=seconds)

    def add(self, key: Key, entry: PendingChunk[Waiter], now: float) -> list[OpenBatch[Waiter]]:
        """Put a chunk into the draft of `key`; returns the drafts that this seals, oldest first. A chunk with
        a position seals at once: its input waits for it alone, so lingering would only cost time."""
        sealed = []
        draft = self._open.get(key)
        if draft is not None and self._exceeds(draft, entry.chunk):
            sealed.append(self._open.pop(key))
            draft = None
        if draft is None:
            draft = self._open[key] = OpenBatch(*key, now + self._limits.linger, entry.chunk.dead)
        draft.entries.append(entry)
        draft.bytes += len(entry.chunk.payload)
        draft.readings += entry.chunk.count
        draft.requests += entry.chunk.request is not None
        if self._full(draft) or entry.chunk.position is not None:
            sealed.append(self._open.pop(key))
        return sealed

    def drafts(self) -> list[OpenBatch[Waiter]]:
        """The open drafts."""
        return list(self._open.values())

    def due(self, key: Key) -> float | None:
        """When the open draft of `key` must be sealed, None when there is none."""
        draft = self._open.get(key)
        return None if draft is None else draft.due

    def seal(self, key: Key, now: float) -> OpenBatch[Waiter] | None:
        """The draft of `key` when it has lingered long enough."""
        draft = self._open.get(key)
        return self._open.pop(key) if draft is not None and draft.due <= now else None

    def flush(self) -> list[OpenBatch[Waiter]]:
        """All open drafts, oldest first."""
        drafts = sorted(self._open.values(), key=lambda draft: draft.due)
        self._open.clear()
        return drafts

    def _exceeds(self, draft: OpenBatch[Waiter], chunk: Chunk) -> bool:
        return (
            draft.dead != chunk.dead
            or draft.bytes + len(chunk.payload) > self._limits.bytes
            or draft.readings + chunk.count > self._limits.readings
        )

    def _full(self, draft: OpenBatch[Waiter]) -> bool:
        return (
            draft.bytes >= self._limits.bytes
            or draft.readings >= self._limits.readings
            or draft.requests >= MAX_REQUESTS
        )


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """A draft that takes no more chunks, and when it was sealed."""

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
