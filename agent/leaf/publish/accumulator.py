"""Gathers chunks into batches and seals them. Times come from the caller.

A chunk waits only for the previous batch of its input and class (group commit). A linger or the batch rate
delays a batch that is not full. Chunks are never split, so only a single chunk can exceed the limits.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from agent.leaf.intake import Chunk
from agent.leaf.publish.limits import CREDIT, BatchRate, Lingers

MAX_REQUESTS: Final = 256
"""Idempotency keys per batch, to keep its header small."""
LARGE: Final = 64 * 1024
"""Bytes of a positioned chunk that the batch rate does not delay, since it could not gather more."""
OVERDUE: Final = 1.0
"""Seconds after which a batch stops waiting for the previous answer."""

Waiter = TypeVar("Waiter")
Key = tuple[str, str]
"""Input and class."""


class BatchLimits(Struct, frozen=True):
    """Seals at `bytes` of NDJSON or `readings`, delayed by `lingers` and an average of `batches_per_second`
    per class.

    `credit` seconds of unused batches may be used at once.
    """

    bytes: int
    readings: int
    lingers: Lingers = field(default_factory=Lingers)
    batches_per_second: float = 1000.0
    credit: float = CREDIT


class PendingChunk(Struct, Generic[Waiter], eq=False):
    """A chunk and its waiter."""

    chunk: Chunk
    waiter: Waiter
    held: int = 0
    """Bytes held of the memory budget."""
    batch: OpenBatch[Waiter] | None = None
    """Its batch until settled."""
    sent: bool = False
    """Its batch has a number."""
    withdrawn: bool = False
    """Left out of its batch before sending."""
    admitted: bool = False
    """Its readings count as accepted."""
    promised: bool = False
    """Acknowledged as accepted; no sender waits."""


class OpenBatch(Struct, Generic[Waiter]):
    """Chunks of one input and class in order, all readings or all `dead` letters."""

    input: str
    cls: str
    due: float
    """Earliest time to seal unless full."""
    dead: bool = False
    entries: list[PendingChunk[Waiter]] = field(default_factory=list)
    bytes: int = 0
    readings: int = 0
    requests: int = 0
    unsettled: int = 0
    """Chunks without outcome."""

    @property
    def key(self) -> Key:
        return self.input, self.cls

    def add(self, entry: PendingChunk[Waiter]) -> None:
        entry.batch = self
        self.entries.append(entry)
        self.bytes += len(entry.chunk.payload)
        self.readings += entry.chunk.count
        self.requests += entry.chunk.request is not None
        self.unsettled += 1

    def live(self) -> list[PendingChunk[Waiter]]:
        """Entries not withdrawn."""
        return [entry for entry in self.entries if not entry.withdrawn]

    def send(self) -> list[PendingChunk[Waiter]]:
        """Return the entries to send; none can be withdrawn any more."""
        entries = self.live()
        for entry in entries:
            entry.sent = True
        return entries

    def take_unpromised(self) -> list[PendingChunk[Waiter]]:
        """Remove and return entries that can still be refused."""
        entries = self.live()
        self.entries = [entry for entry in entries if entry.promised]
        return [entry for entry in entries if not entry.promised]

    @property
    def live_readings(self) -> int:
        """Return the readings not withdrawn."""
        return sum(entry.chunk.count for entry in self.live())


class Accumulator(Generic[Waiter]):
    """The open and the pending batch per input and class."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._open: dict[Key, OpenBatch[Waiter]] = {}
        self._before: dict[Key, OpenBatch[Waiter]] = {}
        self._rates: dict[str, BatchRate] = {}

    def add(self, key: Key, entry: PendingChunk[Waiter], now: float) -> list[OpenBatch[Waiter]]:
        """Add a chunk; returns batches that this seals, oldest first. A positioned chunk gets no later
        companions.
        """
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
        """Note a chunk's outcome; returns the key of a batch that waits only for `due` now, or None."""
        batch, entry.batch = entry.batch, None
        if batch is None:
            return None
        batch.unsettled -= 1
        if batch.unsettled or self._before.get(batch.key) is not batch:
            return None
        del self._before[batch.key]
        return batch.key if batch.key in self._open else None

    def open_batches(self) -> list[OpenBatch[Waiter]]:
        return list(self._open.values())

    def due(self, key: Key) -> float | None:
        """Return when the batch of `key` may be sealed; None if none or waiting for the previous."""
        batch = self._open.get(key)
        return None if batch is None or self._waits(key) else batch.due

    def seal(self, key: Key, now: float) -> OpenBatch[Waiter] | None:
        """Seal the batch of `key` if allowed."""
        due = self.due(key)
        return self._seal(key) if due is not None and due <= now else None

    def overdue(self, now: float) -> list[OpenBatch[Waiter]]:
        """Seal batches that waited too long for the previous."""
        keys = [key for key, batch in self._open.items() if batch.due + OVERDUE <= now]
        return [self._seal(key) for key in keys]

    def flush(self) -> list[OpenBatch[Waiter]]:
        """Seal all batches, oldest first."""
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
