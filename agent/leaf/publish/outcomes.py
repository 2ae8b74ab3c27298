"""Applies each batch's outcome to ledger, metrics, chunks and log.

Refused chunks return to senders; those acknowledged as accepted get a number in the ledger, so that the audit
names them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.contract import LATE, payload_digest
from agent.jetstream import RawMessage
from agent.leaf.events import BatchStored, Events, StreamFull
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.batch import (
    TAKEN,
    Batch,
    Entries,
    count_readings,
    message_bytes,
    promised_readings,
)
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.send_queue import SealedBatch


class InFlight:
    """Batches in flight by serial."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._progress = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over a copy in sending order."""
        return iter(list(self._batches.values()))

    def __contains__(self, batch: Batch) -> bool:
        return self._batches.get(batch.serial) is batch

    def find(self, serial: int) -> Batch | None:
        return self._batches.get(serial)

    def add(self, batch: Batch) -> None:
        self._batches[batch.serial] = batch

    def remove(self, batch: Batch) -> None:
        """Remove a settled or renumbered batch."""
        del self._batches[batch.serial]
        self._progress.set()

    def store_lost(self, cls: str) -> None:
        """Mark a class's batches as possibly at the hub."""
        for batch in self._batches.values():
            batch.store_lost = batch.store_lost or batch.id.cls == cls

    def floor(self, cls: str) -> int | None:
        """Return the sequence above which a class's batches may be stored, or None."""
        return min((batch.floor for batch in self._batches.values() if batch.id.cls == cls), default=None)

    def holds_input(self, input_name: str) -> bool:
        """Tell whether an input has a batch in flight."""
        return any(batch.input == input_name for batch in self._batches.values())

    @property
    def window_used(self) -> int:
        """Return the number of batches, without those waiting for space in a new store: other classes do not
        wait for them.
        """
        return sum(not batch.store_lost for batch in self._batches.values())

    @property
    def oldest_at(self) -> float | None:
        """Return the first sending time of the oldest, or None."""
        return min((batch.first_sent for batch in self._batches.values()), default=None)

    def readings(self, cls: str) -> int:
        """Return a class's readings in flight."""
        return sum(count_readings(batch.entries) for batch in self._batches.values() if batch.id.cls == cls)

    def note_progress(self) -> None:
        """Wake waiters of `progress`."""
        self._progress.set()

    async def progress(self) -> None:
        """Wait until a batch is removed or progress is noted."""
        self._progress.clear()
        await self._progress.wait()


FIRST_PAUSE, FULL_PAUSE = 0.5, 5.0
"""First and longest pause in which batches are refused without number after a full stream. It bounds the
ledger's ranges; senders are asked to wait twice as long.
"""
_FULL_SECONDS: Final = 60.0
"""Seconds without refusal that reset the pause."""

log = structlog.get_logger("sender")


class _Counters:
    def __init__(self, metrics: Metrics, input_name: str, cls: str, dead: bool) -> None:
        self._readings = (metrics.dead if dead else metrics.stored).labels(input_name, cls)
        self._batches = metrics.batches.labels(cls)
        self._raw_bytes, self._wire_bytes = metrics.raw_bytes.labels(cls), metrics.wire_bytes.labels(cls)
        self._seconds = metrics.publish_seconds.labels(cls)

    def count(self, batch: Batch) -> None:
        self._readings.inc(batch.readings)
        self._batches.inc()
        self._raw_bytes.inc(batch.raw_bytes)
        self._wire_bytes.inc(len(batch.payload))
        self._seconds.observe(loop_time() - batch.sealed)


class Outcomes:
    """Settles batches, and emits `BatchStored` and `StreamFull`."""

    def __init__(
        self,
        publisher: Publisher,
        ledgers: Mapping[str, ClassLedger],
        metrics: Metrics,
        refusals: RefusalPauses,
        events: Events,
    ) -> None:
        self._publisher, self._ledgers, self._metrics = publisher, ledgers, metrics
        self._refusals, self._events = refusals, events
        self._counters: dict[tuple[str, str, bool], _Counters] = {}
        self._full_until: dict[str, float] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """Start and length in seconds of the last pause per class."""
        self._refusing: dict[str, LogEdge] = {}
        self._lacking: dict[str, int] = {}
        """Largest message that a class's stream had no space for."""
        self._sparse = Sparse()

    def is_full(self, cls: str) -> bool:
        """Tell whether a class's stream was full a moment ago."""
        return loop_time() < self._full_until.get(cls, 0.0)

    def has_room(self, cls: str) -> None:
        """Retry at once after a trim."""
        self._full_until.pop(cls, None)
        self._lacking.pop(cls, None)

    def stored(self, batch: Batch, seq: int) -> None:
        """Settle a batch stored at `seq`."""
        cls, ledger = batch.id.cls, self._ledgers[batch.id.cls]
        settle = ledger.store_dead if batch.dead else ledger.store
        settle(batch.id.n, batch.readings)
        ledger.chain.add(batch.id.n, payload_digest(batch.payload), batch.readings)
        readings = 0 if batch.dead else batch.readings
        self._events.emit(BatchStored(batch.id, seq, readings, batch.input, batch.position))
        if cls in self._refusing and self._has_room_again(batch):
            self._lacking.pop(cls, None)
            self._publisher.stream_stores(cls)
            self._refusing.pop(cls).end()
        self._counters_of(batch).count(batch)
        self._refusals.stored(batch.input, cls)
        for entry in batch.entries:
            self._publisher.stored((batch.input, cls), entry, seq)

    def _has_room_again(self, batch: Batch) -> bool:
        """Tell whether this stored batch shows space; a full stream may take small batches."""
        refused_at, _ = self._pauses.get(batch.id.cls, (-math.inf, 0.0))
        large = message_bytes(batch.payload, batch.entries) >= self._lacking.get(batch.id.cls, 0)
        return large or loop_time() - refused_at > _FULL_SECONDS

    def _counters_of(self, batch: Batch) -> _Counters:
        key = (batch.input, batch.id.cls, batch.dead)
        counters = self._counters.get(key)
        if counters is None:  # to look them up in the registry costs more than to count
            counters = self._counters[key] = _Counters(self._metrics, *key)
        return counters

    def refused(self, batch: Batch, reason: RefusalReason, text: str) -> None:
        """Settle a refused batch."""
        cls = batch.id.cls
        self.delayed(cls, text)
        if reason is RefusalReason.FULL:
            self._pause(cls)
            self.awaits_room(batch)
            refusal = self.no_room(cls, text)
        else:
            refusal = RefusedError(reason, f"the local stream refuses: {text}")
        self._refusals.batch(batch, refusal)

    def no_room(self, cls: str, text: str) -> RefusedError:
        """Return the refusal for a full stream."""
        _, pause = self._pauses.get(cls, (0.0, FULL_PAUSE))
        return RefusedError(RefusalReason.FULL, f"the local stream is full ({text})", retry_after=2 * pause)

    def _pause(self, cls: str) -> None:
        now = loop_time()
        began, pause = self._pauses.get(cls, (-math.inf, 0.0))
        if now - began > _FULL_SECONDS:
            began, pause = now, FIRST_PAUSE
        elif now >= began + pause:  # what was under way is refused together
            began, pause = now, min(2 * pause, FULL_PAUSE)
        self._pauses[cls] = began, pause
        self._full_until[cls] = began + pause

    def awaits_room(self, batch: Batch) -> None:
        """Note a batch waiting for space."""
        cls, size = batch.id.cls, message_bytes(batch.payload, batch.entries)
        self._lacking[cls] = max(size, self._lacking.get(cls, 0))
        self._publisher.stream_full(cls)
        self._events.emit(StreamFull(cls, size))

    def delayed(self, cls: str, text: str) -> None:
        """Note that a class's stream does not store now."""
        refusing = self._refusing.get(cls)
        if refusing is None:
            refusing = LogEdge(log.bind(**{"class": cls}), "local stream stores again")
            self._refusing[cls] = refusing
        refusing.begin("local stream does not store", answer=text)

    def taken(self, batch: Batch, seq: int, message: RawMessage | None) -> None:
        """Enter and log a batch whose id a foreign `message` at `seq` has (None if gone). The caller sends
        it under the next number.
        """
        cls = batch.id.cls
        self._metrics.taken_ids.labels(cls).inc()
        self._ledgers[cls].refuse(batch.id.n, 0, TAKEN)
        if (held_back := self._sparse.held_back(loop_time())) is not None:
            log.error(
                "message id taken by another sender",
                **{"class": cls},
                id=str(batch.id),
                sequence=seq,
                subject=None if message is None else message.subject,
                effect="the batch is stored under its next number",
                remedy="find who publishes on this subject; replace the devices' key if none should",
                not_reported_before=held_back,
            )


class RefusalPauses:
    """Refuses the publisher's chunks. A loss is logged once for each input, class and reason until something
    of that input is stored again."""

    def __init__(self, publisher: Publisher, ledgers: Mapping[str, ClassLedger]) -> None:
        self._publisher, self._ledgers = publisher, ledgers
        self._logged: set[tuple[str, str, RefusalReason]] = set()

    def unsent(self, sealed: SealedBatch, refusal: RefusedError) -> None:
        """Refuse a draft that has no number; what was promised of it gets one."""
        draft, entries = sealed.draft, sealed.draft.live()
        promised = [entry for entry in entries if entry.promised]
        if promised:
            self._enter(draft.cls, self._ledgers[draft.cls].number(0), promised, refusal.reason)
        self._refuse(draft.input, draft.cls, entries, refusal)

    def unpromised(self, sealed: SealedBatch, refusal: RefusedError) -> bool:
        """Refuse what of a draft was not promised; returns whether something is left."""
        draft = sealed.draft
        self._refuse(draft.input, draft.cls, draft.take_unpromised(), refusal)
        return bool(draft.entries)

    def batch(self, batch: Batch, refusal: RefusedError) -> None:
        """Refuse a batch."""
        self._enter(batch.id.cls, batch.id.n, batch.entries, refusal.reason)
        self._refuse(batch.input, batch.id.cls, batch.entries, refusal)

    def stored(self, input_name: str, cls: str) -> None:
        """Something of an input was stored."""
        if self._logged:
            self._logged = {logged for logged in self._logged if logged[:2] != (input_name, cls)}

    def _refuse(self, input_name: str, cls: str, entries: Entries, refusal: RefusedError) -> None:
        for entry in entries:
            self._publisher.refuse((input_name, cls), entry, refusal)
        lost, place = promised_readings(entries), (input_name, cls, refusal.reason)
        if lost and place not in self._logged:
            self._logged.add(place)
            log.error(
                "readings lost after they were acknowledged",
                **{"input": input_name, "class": cls, "readings": lost, "reason": str(refusal)},
            )

    def _enter(self, cls: str, n: int, entries: Entries, reason: RefusalReason) -> None:
        late = promised_readings(entries)
        word = f"{reason.value} {LATE}" if late else reason.value
        self._ledgers[cls].refuse(n, count_readings(entries), word, late)
