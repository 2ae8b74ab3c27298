"""Collects chunks into drafts of batches by size, count and linger: pure, the caller brings the time.

A chunk is never split: what a sender was promised together is stored together. So a draft may exceed the
limits only when a single chunk does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from agent.leaf.intake import Chunk

MAX_REQUESTS = 256
"""Idempotency keys in one batch: they travel in a header, which must stay small beside the payload."""

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
    """A chunk and whoever waits for its outcome. `held` is how many bytes of memory it was given; `sent` once
    its batch has a number; before that it can be `withdrawn`, and is then left out of its batch. `admitted`
    once its readings count as accepted, `promised` when its sender was told so and nobody waits any more."""

    chunk: Chunk
    waiter: Waiter
    held: int = 0
    sent: bool = False
    withdrawn: bool = False
    admitted: bool = False
    promised: bool = False


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
