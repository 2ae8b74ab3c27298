"""What became of a batch, entered wherever it counts: the ledger, the metrics, its chunks, and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from agent.base.log_edges import Sparse
from agent.base.metrics import Metrics
from agent.jetstream import RawMessage
from agent.leaf.events import BatchStored
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.ledger.ledger import ClassLedger
from agent.leaf.publish.batch import Batch
from agent.leaf.publish.duplicates import TAKEN
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.rejections import Refusals, no_room

FULL_PAUSE = 5.0
"""How long the batches of a class are refused without a number once its stream had no room: so the ledger of
a stream at its brim has a few ranges a minute, not one for every batch."""

log = structlog.get_logger("sender")


class Outcomes:
    """Settles batches. `on_stored` is called for each that its stream acknowledged, `on_full()` when a stream
    refuses for want of room."""

    def __init__(
        self,
        publisher: Publisher,
        ledgers: Mapping[str, ClassLedger],
        metrics: Metrics,
        refusals: Refusals,
        on_stored: Callable[[BatchStored], None],
        on_full: Callable[[], None],
    ) -> None:
        self._publisher, self._ledgers, self._metrics = publisher, ledgers, metrics
        self._refusals, self._on_stored, self._on_full = refusals, on_stored, on_full
        self._full_until: dict[str, float] = {}
        self._trouble: dict[str, str] = {}
        self._sparse = Sparse()

    def is_full(self, cls: str) -> bool:
        """Whether the stream of a class had no room a moment ago."""
        return _now() < self._full_until.get(cls, 0.0)

    def has_room(self, cls: str) -> None:
        """The stream of a class was trimmed: what comes now is tried at once."""
        self._full_until.pop(cls, None)

    def stored(self, batch: Batch, seq: int) -> None:
        """A batch is in its stream, at `seq`."""
        cls, ledger, metrics = batch.id.cls, self._ledgers[batch.id.cls], self._metrics
        settle, settled = (ledger.bury, metrics.dead) if batch.dead else (ledger.store, metrics.stored)
        settle(batch.id.n, batch.readings)
        readings = 0 if batch.dead else batch.readings
        self._on_stored(BatchStored(batch.id, seq, readings, batch.input, batch.position))
        if self._trouble.pop(cls, None) is not None:
            self._publisher.without_room.discard(cls)
            log.info("the local stream stores again", **{"class": cls})
        settled.labels(batch.input, cls).inc(batch.readings)
        metrics.batches.labels(cls).inc()
        metrics.raw_bytes.labels(cls).inc(batch.raw_bytes)
        metrics.wire_bytes.labels(cls).inc(len(batch.payload))
        metrics.publish_seconds.labels(cls).observe(_now() - batch.sealed)
        self._refusals.stored(batch.input, cls)
        for entry in batch.entries:
            self._publisher.stored((batch.input, cls), entry, seq)

    def refused(self, batch: Batch, reason: RefusalReason, text: str) -> None:
        """A batch is not stored and will not be."""
        cls = batch.id.cls
        self.delayed(cls, text)
        if reason is RefusalReason.FULL:
            self._full_until[cls] = _now() + FULL_PAUSE
            self.awaits_room(cls)
            refusal = no_room(text)
        else:
            refusal = RefusedError(reason, f"the local stream refuses: {text}")
        self._refusals.batch(batch, refusal)

    def awaits_room(self, cls: str) -> None:
        """The stream of a class has no room for a batch now."""
        self._publisher.without_room.add(cls)
        self._on_full()

    def delayed(self, cls: str, text: str) -> None:
        """The stream of a class does not store now."""
        if self._trouble.get(cls) != text:
            log.warning("the local stream does not store", **{"class": cls}, answer=text)
        self._trouble[cls] = text

    def taken(self, batch: Batch, seq: int, message: RawMessage | None) -> None:
        """The id of a batch is that of another message, which is at `seq`; None where that is gone."""
        cls = batch.id.cls
        self._metrics.taken_ids.labels(cls).inc()
        self._ledgers[cls].refuse(batch.id.n, 0, TAKEN)
        if (held_back := self._sparse.held_back(_now())) is not None:
            log.error(
                "message id taken by another sender",
                **{"class": cls},
                id=str(batch.id),
                sequence=seq,
                subject=None if message is None else message.subject,
                effect="the batch is stored under its next number",
                remedy="find who publishes on this subject; replace the key of the devices if nobody should",
                not_reported_before=held_back,
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
