"""Sends sealed drafts until their PubAck, with a window of batches in flight.

A batch keeps its number and id through all attempts. A new connection first settles what the stream already
holds. An id may be used by others, so a duplicate's message is checked and a taken batch is renumbered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import structlog
from nats.errors import Error as NatsError

from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.jetstream import JetStreamError
from agent.jetstream.connection import QuickClient
from agent.leaf.events import ConnectionStuck, Events
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.batch import (
    NO_STREAM,
    Batch,
    Look,
    NotStored,
    Numbering,
    Packer,
    StoredAck,
    count_readings,
    is_own,
    message_bytes,
    parse_ack,
)
from agent.leaf.publish.outcomes import InFlight, Outcomes, RefusalPauses
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.send_queue import SealedBatch

ACK_WAIT = 5.0
RETRY_PAUSE = 0.5
UNSENT_LIMIT = 2**20
"""Unsent bytes of the connection above which attempts wait."""
RETRY_WITHIN = 90.0
"""Attempts end within the duplicate window (2 minutes); later a new connection looks first."""

log = structlog.get_logger("sender")


class Sender:
    """Sends the publisher's drafts. Emits `BatchStored`, `StreamFull` and `ConnectionStuck`."""

    def __init__(
        self,
        publisher: Publisher,
        ledgers: Mapping[str, ClassLedger],
        *,
        domain: str,
        run: str,
        window: int,
        metrics: Metrics,
        events: Events,
    ) -> None:
        self._publisher, self._ledgers, self._metrics = publisher, ledgers, metrics
        self._window, self._events = window, events
        self._packer = Packer()
        self._numbering = Numbering(domain, run, ledgers, self._packer)
        self._in_flight = InFlight()
        self._nc: QuickClient | None = None
        self._look: Look | None = None
        self._inbox = ""
        self._stream_seq: dict[str, int] = dict.fromkeys(ledgers, 0)
        self._queue = publisher.queue
        self._refusals = RefusalPauses(publisher, ledgers)
        self._outcomes = Outcomes(publisher, ledgers, metrics, self._refusals, events)
        publisher.balance.watch(self.held)
        self._claims = asyncio.Event()
        self._moved = 0.0

    @contextlib.asynccontextmanager
    async def connected(
        self,
        nc: QuickClient,
        inbox: str,
        stream_seq: Mapping[str, int],
        stored: Mapping[tuple[str, str], int],
        look: Look,
    ) -> AsyncIterator[None]:
        """Send over `nc` within the scope: settle stored batches, resend others; later batches wait for the
        next connection.

        Answers arrive below `inbox`; `look` reads a message. `stream_seq` is at most each stream's last
        sequence when inspected, `stored` the subjects and ids found above `floor`. Raises `NatsError` or
        `OSError`.
        """
        try:
            await nc.receive(f"{inbox}.*", self._on_reply)
            for batch in self._in_flight:
                if (seq := stored.get((batch.subject, str(batch.id)))) is not None:
                    self._store(batch, seq)
            self._stream_seq.update(stream_seq)
            self._nc, self._inbox, self._look = nc, inbox, look
            now = self._moved = loop_time()
            self._publisher.admission.server_back(nc.max_payload)
            for batch in self._in_flight:
                # A floor of the stream that was, before its store was lost or restored, would hide what this
                # one holds; and what was looked through needs no second look.
                batch.floor = self._stream_seq[batch.id.cls]
                batch.first_sent, batch.unanswered = now, 0
                batch.carried, batch.claimed = True, None
                self._transmit_if_taken(batch)
            self._queue.wake()
            yield
        finally:
            if self._nc is not None:
                self._nc = self._look = None
                self._publisher.admission.server_away()

    def store_lost(self, cls: str) -> None:
        """Mark unanswered batches of a lost store as possibly at the hub."""
        self._in_flight.store_lost(cls)

    def has_room(self, cls: str) -> None:
        """Retry at once after a trim."""
        self._outcomes.has_room(cls)

    def floor(self, cls: str) -> int | None:
        """Return the sequence above which batches in flight may be stored, or None."""
        return self._in_flight.floor(cls)

    async def run(self) -> None:
        """Send drafts within the window."""
        while True:
            while self._nc is None or not self._queue or self._in_flight.window_used >= self._window:
                self._in_flight.note_progress()
                await self._queue.changed()
            self._send(self._queue.take())

    async def run_retries(self) -> None:
        """Resend unanswered batches under the same id."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RETRY_PAUSE)
            self._queue.release(self._publisher.admission.refusal)
            self._publisher.batches.seal_overdue()
            self._publisher.end_waits()
            for batch in self._in_flight:
                now = loop.time()
                if self._nc is None or self._nc.pending_data_size > UNSENT_LIMIT:
                    break
                if now - batch.first_sent > RETRY_WITHIN:
                    self._events.emit(
                        ConnectionStuck(f"batch {batch.id} is unanswered after {RETRY_WITHIN:.0f} s")
                    )
                    break
                due = batch.refused_at is not None or now - batch.last_sent > ACK_WAIT
                if due and batch.claimed is None:
                    self._metrics.retries.labels(batch.id.cls).inc()
                    self._transmit(batch)

    async def run_checks(self) -> None:
        """Check messages under the ids of reported duplicates."""
        while True:
            await self._claims.wait()
            self._claims.clear()
            for batch in self._in_flight:
                if batch.claimed is not None and batch.unanswered <= 0 and self._look is not None:
                    await self._check(batch, batch.claimed, self._look)

    async def drained(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._in_flight or not self._queue.is_drained:
            await self._in_flight.progress()

    async def idle(self, input_name: str) -> None:
        """Wait until an input has no batch in flight, so that its position is final."""
        while self._in_flight.holds_input(input_name):
            await self._in_flight.progress()

    def stalled(self) -> float:
        """Return seconds without any answer while batches wait on a connection, else 0."""
        ages = (self._in_flight.oldest_at, self._queue.oldest_at)
        began = [instant for instant in ages if instant is not None]
        if self._nc is None or not began:
            return 0.0
        return loop_time() - max(min(began), self._moved)

    def held(self, cls: str) -> int:
        """Return a class's unsettled readings."""
        return self._publisher.batches.held(cls) + self._in_flight.readings(cls)

    def abandon(self) -> None:
        """Refuse unsent drafts and end waits for batches in flight as unknown."""
        self._publisher.stop()
        stopping = RefusedError(RefusalReason.STOPPING, "the agent is stopping")
        for sealed in self._queue.drain():
            self._refusals.unsent(sealed, stopping)
        for batch in self._in_flight:
            for entry in batch.entries:
                self._publisher.settle(
                    batch.id.cls,
                    entry,
                    UnknownOutcomeError("the agent stopped before the local NATS server answered"),
                )

    def _send(self, sealed: SealedBatch) -> None:
        self._moved = loop_time()
        draft = sealed.draft
        entries = draft.live()
        if not entries:
            return
        if self._outcomes.is_full(draft.cls):
            self._refusals.unsent(sealed, self._outcomes.no_room(draft.cls, "no room"))
            return
        if (why := self._publisher.admission.refusal(draft.cls)) is not None:
            # What is sent to a server that can't store is of unknown outcome; what isn't is refused, or waits
            # where it was acknowledged as accepted.
            if self._refusals.unpromised(sealed, RefusedError(RefusalReason.UNAVAILABLE, why)):
                self._queue.hold_back(sealed)
            return
        if self._queue.holds_back(draft.cls):
            self._queue.put_first(sealed)
            self._queue.release(self._publisher.admission.refusal)
            return
        packed = self._packer.pack(entries, draft.input)
        size = message_bytes(packed[0], entries)
        if (refusal := self._publisher.admission.too_large(size, count_readings(entries))) is not None:
            self._refusals.unsent(sealed, refusal)
            return
        draft.send()
        floor, now = self._stream_seq[draft.cls], loop_time()
        batch = self._numbering.batch(sealed, entries, packed, floor=floor, now=now)
        self._in_flight.add(batch)
        self._transmit(batch)

    def _transmit_if_taken(self, batch: Batch) -> None:
        """Send an earlier connection's batch, or refuse it if above the server's limit, which would end the
        connection.
        """
        size = message_bytes(batch.payload, batch.entries)
        refusal = self._publisher.admission.too_large(size, batch.readings)
        if refusal is None:
            self._transmit(batch)
        else:
            self._forget(batch)
            self._refusals.batch(batch, refusal)

    def _transmit(self, batch: Batch) -> None:
        batch.last_sent = loop_time()
        batch.refused_at = None
        if self._nc is None:
            return
        batch.unanswered += 1
        try:
            self._nc.send(batch.subject, batch.payload, f"{self._inbox}.{batch.serial}", batch.headers)
        except (NatsError, OSError) as error:
            self._events.emit(ConnectionStuck(f"publishing failed: {error}"))

    def _on_reply(self, subject: str, data: bytes) -> None:
        inbox, _, serial = subject.rpartition(".")
        batch = self._in_flight.find(int(serial))
        if batch is None or inbox != self._inbox:
            # An answer over the connection before says nothing of the attempts over this one.
            return
        batch.unanswered -= 1
        self._moved = loop_time()
        match parse_ack(data):
            case StoredAck(seq, duplicate=False):
                self._store(batch, seq)
            case StoredAck(seq):
                batch.claimed = seq
                self._claims.set()
            case NotStored(text, None):
                self._retry_later(batch, text)
            case NotStored(text, RefusalReason.FULL) if batch.store_lost:
                # Refused, its readings would come again in another batch, which the hub takes for others.
                self._retry_later(batch, text)
                self._outcomes.awaits_room(batch)
            case NotStored(text, reason) if reason is not None and batch.unanswered <= 0:
                # While another attempt is under way that one may still be stored: its answer decides.
                self._forget(batch)
                self._outcomes.refused(batch, reason, text)

    async def _check(self, batch: Batch, seq: int, look: Look) -> None:
        try:
            message = await look(batch.id.cls, seq)
        except JetStreamError:
            # Over another connection it is sent again, which claims it again.
            asyncio.get_running_loop().call_later(RETRY_PAUSE, self._claims.set)
            return
        if batch not in self._in_flight or batch.unanswered > 0 or look is not self._look:
            return  # it was settled meanwhile, or another answer is to come
        if is_own(batch, message):
            self._store(batch, seq)
            return
        self._in_flight.remove(batch)
        self._outcomes.taken(batch, seq, message)
        now = loop_time()
        again = self._numbering.again(batch, floor=self._stream_seq[batch.id.cls], now=now)
        self._in_flight.add(again)
        self._transmit(again)

    def _retry_later(self, batch: Batch, text: str) -> None:
        batch.refused_at = loop_time()
        if batch.store_lost and batch.unanswered <= 0:
            batch.first_sent = batch.refused_at  # no attempt before this one can be stored any more
        self._outcomes.delayed(batch.id.cls, text)
        if text == NO_STREAM:
            self._events.emit(ConnectionStuck(f"{text}: {batch.subject}"))

    def _store(self, batch: Batch, seq: int) -> None:
        self._forget(batch)
        self._stream_seq[batch.id.cls] = max(self._stream_seq[batch.id.cls], seq)
        self._outcomes.stored(batch, seq)

    def _forget(self, batch: Batch) -> None:
        self._in_flight.remove(batch)
        self._queue.wake()
