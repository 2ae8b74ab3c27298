"""The batches in flight, and what becomes of each: it is entered wherever it counts, in the ledger, the
metrics, its chunks, and the log.

Refused chunks go back to their senders; what had been acknowledged as accepted is entered in the ledger under
a number, so that the audit names it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.contract import LATE
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
    """Batches in flight by their serial, and questions about them."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._progress = asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """All of them as they are now, in the order in which they were sent first."""
        return iter(list(self._batches.values()))

    def __contains__(self, batch: Batch) -> bool:
        return self._batches.get(batch.serial) is batch

    def find(self, serial: int) -> Batch | None:
        """The batch of a serial."""
        return self._batches.get(serial)

    def add(self, batch: Batch) -> None:
        """A batch is sent."""
        self._batches[batch.serial] = batch

    def remove(self, batch: Batch) -> None:
        """The outcome of a batch is known, or it goes under another number."""
        del self._batches[batch.serial]
        self._progress.set()

    def store_lost(self, cls: str) -> None:
        """The store of a class was lost: what was sent to it may be at the hub."""
        for batch in self._batches.values():
            batch.store_lost = batch.store_lost or batch.id.cls == cls

    def floor(self, cls: str) -> int | None:
        """The sequence above which those of a class may be stored, None when there is none."""
        return min((batch.floor for batch in self._batches.values() if batch.id.cls == cls), default=None)

    def holds_input(self, input_name: str) -> bool:
        """Whether a batch of an input is in flight."""
        return any(batch.input == input_name for batch in self._batches.values())

    @property
    def window_used(self) -> int:
        """How many there are but those that wait for room in a new store: other classes need not wait with
        them."""
        return sum(not batch.store_lost for batch in self._batches.values())

    @property
    def oldest_at(self) -> float | None:
        """When the one that was sent first was, None when there is none."""
        return min((batch.first_sent for batch in self._batches.values()), default=None)

    def readings(self, cls: str) -> int:
        """The readings of a class in flight, counted one by one."""
        return sum(count_readings(batch.entries) for batch in self._batches.values() if batch.id.cls == cls)

    def note_progress(self) -> None:
        """Let those look again that wait for `progress`."""
        self._progress.set()

    async def progress(self) -> None:
        """Return when a batch was removed, or something else was noted."""
        self._progress.clear()
        await self._progress.wait()


FIRST_PAUSE, FULL_PAUSE = 0.5, 5.0
"""How long the batches of a class are refused without a number once its stream had no room, at first, and at
most if that goes on: so the ledger of a stream at its brim has a few ranges a minute, not one for every
batch. Senders are asked to wait twice as long."""
_FULL_SECONDS: Final = 60.0
"""After so long without a refusal the first pause is the next one."""

log = structlog.get_logger("sender")


class _Counters:
    """What is counted of the stored batches of an input and class."""

    def __init__(self, metrics: Metrics, input_name: str, cls: str, dead: bool) -> None:
        self._readings = (metrics.dead if dead else metrics.stored).labels(input_name, cls)
        self._batches = metrics.batches.labels(cls)
        self._raw_bytes, self._wire_bytes = metrics.raw_bytes.labels(cls), metrics.wire_bytes.labels(cls)
        self._seconds = metrics.publish_seconds.labels(cls)

    def count(self, batch: Batch) -> None:
        """A batch was stored."""
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
        """Since when the batches of a class were refused last, and for how long."""
        self._refusing: dict[str, LogEdge] = {}
        self._lacking: dict[str, int] = {}
        """The bytes of the largest message for which the stream of a class had no room."""
        self._sparse = Sparse()

    def is_full(self, cls: str) -> bool:
        """Whether the stream of a class had no room a moment ago."""
        return loop_time() < self._full_until.get(cls, 0.0)

    def has_room(self, cls: str) -> None:
        """The stream of a class was trimmed: what comes now is tried at once."""
        self._full_until.pop(cls, None)
        self._lacking.pop(cls, None)

    def stored(self, batch: Batch, seq: int) -> None:
        """A batch is in its stream, at `seq`."""
        cls, ledger = batch.id.cls, self._ledgers[batch.id.cls]
        settle = ledger.store_dead if batch.dead else ledger.store
        settle(batch.id.n, batch.readings)
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
        """Whether a batch that was stored shows that the stream stores again: a full stream takes small
        batches between large ones that it refuses."""
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
        """A batch is not stored and will not be."""
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
        """The refusal of a batch whose stream has no room now."""
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
        """The stream of a class has no room for a batch now."""
        cls, size = batch.id.cls, message_bytes(batch.payload, batch.entries)
        self._lacking[cls] = max(size, self._lacking.get(cls, 0))
        self._publisher.stream_full(cls)
        self._events.emit(StreamFull(cls, size))

    def delayed(self, cls: str, text: str) -> None:
        """The stream of a class does not store now."""
        refusing = self._refusing.get(cls)
        if refusing is None:
            refusing = LogEdge(log.bind(**{"class": cls}), "local stream stores again")
            self._refusing[cls] = refusing
        refusing.begin("local stream does not store", answer=text)

    def taken(self, batch: Batch, seq: int, message: RawMessage | None) -> None:
        """The id of a batch is that of another message, which is at `seq`; None where that is gone."""
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
