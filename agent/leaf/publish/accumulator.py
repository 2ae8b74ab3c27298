"""Collects chunks into batches, and says when one is sealed. The caller brings the time.

A chunk waits for the batch before it and for no clock (group commit): while nothing of its input and class is
under way its batch is sealed at once, otherwise it gathers until that is settled. Two things hold a batch
back longer: a linger, and the bound on batches a second. A batch that is full is never held back.

A chunk is never split: what a sender was promised together is stored together. So a batch may exceed the
limits only when a single chunk does.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from agent.leaf.intake import Chunk
from agent.leaf.publish.limits import CREDIT, BatchRate, Lingers

MAX_REQUESTS: Final = 256
"""Idempotency keys in one batch: they travel in a header, which must stay small compared with the payload."""
LARGE: Final = 64 * 1024
"""Bytes of a chunk with a position from which on the bound on batches does not hold it back: it could not
gather with others anyway."""
OVERDUE: Final = 1.0
"""Seconds after which a batch waits no longer for the one before it, whose answer may be lost."""

Waiter = TypeVar("Waiter")
Key = tuple[str, str]
"""Input and class."""


class BatchLimits(Struct, frozen=True):
    """When an open batch is sealed: at `bytes` of NDJSON or at `readings`; and how it is held back before:
    by `lingers`, and so that each class has `batches_per_second` on average, with `credit` seconds of unused
    ones at once."""

    bytes: int
    readings: int
    lingers: Lingers = field(default_factory=Lingers)
    batches_per_second: float = 1000.0
    credit: float = CREDIT


class PendingChunk(Struct, Generic[Waiter], eq=False):
    """A chunk and what waits for its outcome."""

    chunk: Chunk
    waiter: Waiter
    held: int = 0
    """Bytes of the memory budget that it takes."""
    batch: OpenBatch[Waiter] | None = None
    """The batch that it is part of, until its outcome is known."""
    sent: bool = False
    """Its batch has a number."""
    withdrawn: bool = False
    """It is left out of its batch; only before it is sent."""
    admitted: bool = False
    """Its readings count as accepted."""
    promised: bool = False
    """It was acknowledged as accepted, and no sender waits for it."""


class OpenBatch(Struct, Generic[Waiter]):
    """A batch in the making: chunks of one input and class, in the order in which they came, all of them
    readings or all of them `dead` letters."""

    input: str
    cls: str
    due: float
    """Before this instant only a full batch is sealed."""
    dead: bool = False
    entries: list[PendingChunk[Waiter]] = field(default_factory=list)
    bytes: int = 0
    readings: int = 0
    requests: int = 0
    unsettled: int = 0
    """The chunks whose outcome is not known."""

    @property
    def key(self) -> Key:
        """Its input and class."""
        return self.input, self.cls

    def add(self, entry: PendingChunk[Waiter]) -> None:
        """Put a chunk behind the others."""
        entry.batch = self
        self.entries.append(entry)
        self.bytes += len(entry.chunk.payload)
        self.readings += entry.chunk.count
        self.requests += entry.chunk.request is not None
        self.unsettled += 1

    def live(self) -> list[PendingChunk[Waiter]]:
        """The entries that still want to be sent."""
        return [entry for entry in self.entries if not entry.withdrawn]

    def send(self) -> list[PendingChunk[Waiter]]:
        """The entries of the batch that is made of this: from now on none can be withdrawn."""
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
    """The open batch of each input and class, and the one before it while that is under way."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._open: dict[Key, OpenBatch[Waiter]] = {}
        self._before: dict[Key, OpenBatch[Waiter]] = {}
        self._rates: dict[str, BatchRate] = {}

    def add(self, key: Key, entry: PendingChunk[Waiter], now: float) -> list[OpenBatch[Waiter]]:
        """Put a chunk into the open batch of `key`; returns the batches that this seals, oldest first. A
        chunk with a position shares no batch with later ones: its input waits for it alone."""
        sealed = []
        batch = self._open.get(key)
        if batch is not None and self._exceeds(batch, entry.chunk):
            sealed.append(self._seal(key))
            batch = None
        if batch is None:
            batch = self._open[key] = OpenBatch(*key, self._due(key, entry.chunk, now), entry.chunk.dead)
        batch.add(entry)
        if self._is_full(batch) or (entry.chunk.position is not None and len(entry.chunk.payload) >= LARGE):
            self._rate(key).give_back(now)
            sealed.append(self._seal(key))
        elif entry.chunk.position is not None and batch.due <= now:
            sealed.append(self._seal(key))
        return sealed

    def settled(self, entry: PendingChunk[Waiter]) -> Key | None:
        """The outcome of a chunk is known. Returns the key of the open batch that waits for nothing any more
        but its `due`, None where there is none."""
        batch, entry.batch = entry.batch, None
        if batch is None:
            return None
        batch.unsettled -= 1
        if batch.unsettled or self._before.get(batch.key) is not batch:
            return None
        del self._before[batch.key]
        return batch.key if batch.key in self._open else None

    def open_batches(self) -> list[OpenBatch[Waiter]]:
        """What is open."""
        return list(self._open.values())

    def due(self, key: Key) -> float | None:
        """When the open batch of `key` may be sealed; None where there is none, or it waits for the one
        before it."""
        batch = self._open.get(key)
        return None if batch is None or self._waits(key) else batch.due

    def seal(self, key: Key, now: float) -> OpenBatch[Waiter] | None:
        """The open batch of `key` if it may be sealed."""
        due = self.due(key)
        return self._seal(key) if due is not None and due <= now else None

    def overdue(self, now: float) -> list[OpenBatch[Waiter]]:
        """The open batches that have waited too long for those before them."""
        keys = [key for key, batch in self._open.items() if batch.due + OVERDUE <= now]
        return [self._seal(key) for key in keys]

    def flush(self) -> list[OpenBatch[Waiter]]:
        """All open batches, oldest first."""
        keys = sorted(self._open, key=lambda key: self._open[key].due)
        return [self._seal(key) for key in keys]

    def _seal(self, key: Key) -> OpenBatch[Waiter]:
        batch = self._open.pop(key)
        if batch.unsettled:
            self._before[key] = batch
        return batch

    def _waits(self, key: Key) -> bool:
        return key in self._before and not self._limits.lingers.of(key)

    def _due(self, key: Key, chunk: Chunk, now: float) -> float:
        linger = self._limits.lingers.of(key) if chunk.position is None else 0.0
        return max(now + linger, self._rate(key).reserve(now))

    def _rate(self, key: Key) -> BatchRate:
        rate = self._rates.get(key[1])
        if rate is None:
            rate = self._rates[key[1]] = BatchRate(self._limits.batches_per_second, self._limits.credit)
        return rate

    def _exceeds(self, batch: OpenBatch[Waiter], chunk: Chunk) -> bool:
        return (
            batch.dead != chunk.dead
            or batch.bytes + len(chunk.payload) > self._limits.bytes
            or batch.readings + chunk.count > self._limits.readings
            or batch.entries[-1].chunk.position is not None
        )

    def _is_full(self, batch: OpenBatch[Waiter]) -> bool:
        return (
            batch.bytes >= self._limits.bytes
            or batch.readings >= self._limits.readings
            or batch.requests >= MAX_REQUESTS
        )
