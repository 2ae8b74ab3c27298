"""The sending side of the publish path: from a sealed draft to its PubAck.

A window of batches is in flight. A batch gets its number when it is first sent and keeps it: every further
attempt goes under the same id. Nothing is sent while detached, and `attach` is told what the stream holds
already, so that a batch which was stored before its ack was lost is settled rather than sent again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from agent import acks, contract
from agent.contract import MessageId
from agent.intake import Reason, RefusedError, UnknownOutcomeError
from agent.ledger import ClassLedger
from agent.metrics import Metrics
from agent.packing import Batch, Entries, Packer, Sealed, count_readings, message_bytes
from agent.publisher import Publisher
from agent.refusals import Refusals, no_room, promised_readings

ACK_WAIT = 5.0
RETRY_PAUSE = 0.5
FULL_PAUSE = 5.0
"""How long the batches of a class are refused without a number once its stream had no room: so the ledger of
a stream at its brim has a few ranges a minute, not one for every batch."""
UNSENT_LIMIT = 2**20
"""Bytes that the connection has not got rid of above which a further attempt would only fill memory."""
RETRY_WITHIN = 90.0
"""Attempts end well inside the stream's duplicate window (2 minutes); after that a new connection looks
first."""

log = structlog.get_logger("sender")


class Sender:
    """Sends the publisher's drafts. `on_ack(batch, seq)` is told each stored batch, `on_full()` that a stream
    refuses for want of room, `on_stuck(reason)` that this connection leads nowhere and a new one is needed.
    """

    def __init__(
        self,
        publisher: Publisher,
        ledgers: Mapping[str, ClassLedger],
        *,
        domain: str,
        run: str,
        window: int,
        metrics: Metrics,
        on_ack: Callable[[Batch, int], None],
        on_full: Callable[[], None],
        on_stuck: Callable[[str], None],
    ) -> None:
        self._publisher, self._ledgers, self._metrics = publisher, ledgers, metrics
        self._domain, self._run, self._window = domain, run, window
        self._on_ack, self._on_full, self._on_stuck = on_ack, on_full, on_stuck
        self._packer = Packer()
        self._in_flight: dict[int, Batch] = {}
        self._serial = itertools.count(1)
        self._nc: Client | None = None
        self._inbox = ""
        self._stream_seq: dict[str, int] = dict.fromkeys(ledgers, 0)
        self._full_until: dict[str, float] = {}
        self._trouble: dict[str, str] = {}
        self._waiting: list[Sealed] = []
        self._refusals = Refusals(publisher, ledgers)
        self._progress = asyncio.Event()
        self._moved = 0.0

    async def attach(
        self, nc: Client, inbox: str, stream_seq: Mapping[str, int], stored: Mapping[str, int]
    ) -> None:
        """Begin to send over `nc`, whose answers come below the subject `inbox`. `stream_seq` is each
        stream's last sequence at most as it was when the stream was looked at, `stored` maps the message ids
        then found above `floor` to their sequences. Raises `NatsError` or `OSError`."""
        await nc.subscribe(f"{inbox}.*", cb=self._on_reply)
        for batch in list(self._in_flight.values()):
            if (seq := stored.get(str(batch.id))) is not None:
                self._store(batch, seq)
        self._stream_seq.update(stream_seq)
        self._nc, self._inbox = nc, inbox
        now = self._moved = asyncio.get_running_loop().time()
        for batch in list(self._in_flight.values()):
            # A floor of the stream that was, before its store was lost or put back, would hide what this one
            # holds; and what was looked through needs no second look.
            batch.floor = self._stream_seq[batch.id.cls]
            batch.first_sent, batch.unanswered = now, 0
            await self._transmit(batch)
        self._publisher.server_back()
        self._publisher.queued.set()

    def detach(self) -> None:
        """The connection is gone; batches in flight wait for the next one."""
        if self._nc is not None:
            self._nc = None
            self._publisher.server_away()

    def has_room(self, cls: str) -> None:
        """The stream of a class was trimmed: what comes now is tried at once."""
        self._full_until.pop(cls, None)

    def floor(self, cls: str) -> int | None:
        """The sequence above which batches in flight may be stored, None when none is in flight."""
        return min((batch.floor for batch in self._in_flight.values() if batch.id.cls == cls), default=None)

    async def run(self) -> None:
        """Send drafts as they come, within the window."""
        queued = self._publisher.queued
        while True:
            while self._nc is None or not self._publisher.queue or len(self._in_flight) >= self._window:
                queued.clear()
                self._progress.set()
                await queued.wait()
            await self._send(self._publisher.queue.popleft(), self._nc.max_payload)

    async def run_retries(self) -> None:
        """Send again what was not answered in time, under the same id."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RETRY_PAUSE)
            self._queue_again()
            for batch in list(self._in_flight.values()):
                now = loop.time()
                if self._nc is None or self._nc.pending_data_size > UNSENT_LIMIT:
                    break
                if now - batch.first_sent > RETRY_WITHIN:
                    self._on_stuck(f"batch {batch.id} is unanswered after {RETRY_WITHIN:.0f} s")
                    break
                if batch.refused_at is not None or now - batch.last_sent > ACK_WAIT:
                    self._metrics.retries.labels(batch.id.cls).inc()
                    await self._transmit(batch)

    async def drained(self) -> None:
        """Return once nothing is queued or in flight."""
        while self._publisher.queue or self._in_flight or self._waiting:
            self._progress.clear()
            await self._progress.wait()

    async def idle(self, input_name: str) -> None:
        """Return once no batch of this input is in flight, so that its last stored position stands."""
        while any(one.input == input_name for one in self._in_flight.values()):
            self._progress.clear()
            await self._progress.wait()

    def stalled(self) -> float:
        """Seconds for which batches have waited over a connection that is there, and nothing was answered or
        settled; 0 while nothing waits."""
        began = [one.at for one in itertools.islice(self._publisher.queue, 1)]
        began += [one.first_sent for one in self._in_flight.values()]
        if self._nc is None or not began:
            return 0.0
        return asyncio.get_running_loop().time() - max(min(began), self._moved)

    def held(self, cls: str) -> int:
        """The readings of a class that are under way or wait here, counted one by one."""
        batches = (one.entries for one in self._in_flight.values() if one.id.cls == cls)
        waiting = (one.draft.live() for one in self._waiting if one.draft.cls == cls)
        return sum(map(count_readings, itertools.chain(batches, waiting)))

    def abandon(self) -> None:
        """The agent ends: refuse what was never sent, and tell who waits for a batch in flight that its
        outcome is not known."""
        self._publisher.stop()
        stopping = RefusedError(Reason.STOPPING, "the agent is stopping", 5.0)
        unsent = [*self._waiting, *self._publisher.queue]
        self._waiting.clear()
        self._publisher.queue.clear()
        for sealed in unsent:
            self._refusals.unsent(sealed, stopping)
        for batch in self._in_flight.values():
            for entry in batch.entries:
                self._publisher.settle(
                    batch.id.cls,
                    entry,
                    UnknownOutcomeError("the agent stopped before the local NATS server answered"),
                )

    def _queue_again(self) -> None:
        """What waited for a server that could not store is sent once it can."""
        waiting, self._waiting = self._waiting, []
        for sealed in reversed(waiting):
            if self._publisher.refusal(sealed.draft.cls) is None:
                self._publisher.queue.appendleft(sealed)
            else:
                self._waiting.insert(0, sealed)
        if waiting:
            self._publisher.queued.set()

    async def _send(self, sealed: Sealed, max_payload: int) -> None:
        self._moved = asyncio.get_running_loop().time()
        draft = sealed.draft
        entries = draft.live()
        if not entries:
            return
        if asyncio.get_running_loop().time() < self._full_until.get(draft.cls, 0.0):
            self._refusals.unsent(sealed, no_room("no room"))
            return
        if (why := self._publisher.refusal(draft.cls)) is not None:
            # What is sent to a server that can't store is of unknown outcome; what isn't is refused, or waits
            # where its sender was told that it is accepted.
            if self._refusals.unpromised(sealed, RefusedError(Reason.UNAVAILABLE, why, 5.0)):
                self._waiting.append(sealed)
            return
        payload, compressed = self._packer.pack(entries)
        size = message_bytes(payload, entries)
        if size > max_payload:
            text = (
                f"{size} bytes compressed, the server takes {max_payload} in a message; send fewer readings"
            )
            self._refusals.unsent(sealed, RefusedError(Reason.TOO_LARGE, text))
            return
        for entry in entries:
            entry.sent = True
        batch = self._number(sealed, entries, payload, compressed)
        self._in_flight[batch.serial] = batch
        await self._transmit(batch)

    def _number(self, sealed: Sealed, entries: Entries, payload: bytes, compressed: bool) -> Batch:
        draft = sealed.draft
        readings, early = count_readings(entries), promised_readings(entries)
        ident = MessageId(self._run, draft.cls, self._ledgers[draft.cls].number(readings - early))
        subject = contract.dead_subject if draft.dead else contract.batch_subject
        now = asyncio.get_running_loop().time()
        return Batch(
            serial=next(self._serial),
            id=ident,
            subject=subject(self._domain, draft.cls, draft.input),
            headers=self._packer.headers(sealed, entries, ident, compressed),
            payload=payload,
            entries=entries,
            input=draft.input,
            dead=draft.dead,
            readings=readings,
            raw_bytes=sum(len(entry.chunk.payload) for entry in entries),
            floor=self._stream_seq[draft.cls],
            sealed=sealed.at,
            first_sent=now,
            last_sent=now,
        )

    async def _transmit(self, batch: Batch) -> None:
        batch.last_sent = asyncio.get_running_loop().time()
        batch.refused_at = None
        if self._nc is None:
            return
        batch.unanswered += 1
        try:
            await self._nc.publish(
                batch.subject, batch.payload, f"{self._inbox}.{batch.serial}", headers=batch.headers
            )
        except (NatsError, OSError) as error:
            self._on_stuck(f"publishing failed: {error}")

    async def _on_reply(self, msg: Msg) -> None:
        inbox, _, serial = msg.subject.rpartition(".")
        batch = self._in_flight.get(int(serial))
        if batch is None or inbox != self._inbox:
            # An answer over the connection before says nothing of the attempts over this one.
            return
        batch.unanswered -= 1
        self._moved = asyncio.get_running_loop().time()
        match acks.parse(msg.data):
            case acks.Stored(seq):
                self._store(batch, seq)
            case acks.NotStored(text, None):
                self._retry_later(batch, text)
            case acks.NotStored(text, reason) if reason is not None and batch.unanswered <= 0:
                # While another attempt is under way that one may still be stored: its answer decides.
                self._refuse(batch, reason, text)

    def _retry_later(self, batch: Batch, text: str) -> None:
        batch.refused_at = asyncio.get_running_loop().time()
        self._complain(batch.id.cls, text)
        if text == acks.NO_STREAM:
            self._on_stuck(f"{text}: {batch.subject}")

    def _complain(self, cls: str, text: str) -> None:
        if self._trouble.get(cls) != text:
            log.warning("the local stream does not store", **{"class": cls}, answer=text)
        self._trouble[cls] = text

    def _store(self, batch: Batch, seq: int) -> None:
        cls = batch.id.cls
        self._forget(batch)
        self._stream_seq[cls] = max(self._stream_seq[cls], seq)
        ledger, metrics = self._ledgers[cls], self._metrics
        settle, settled = (ledger.bury, metrics.dead) if batch.dead else (ledger.store, metrics.stored)
        settle(batch.id.n, batch.readings)
        self._on_ack(batch, seq)
        if self._trouble.pop(cls, None) is not None:
            self._publisher.without_room.discard(cls)
            log.info("the local stream stores again", **{"class": cls})
        settled.labels(batch.input, cls).inc(batch.readings)
        metrics.batches.labels(cls).inc()
        metrics.raw_bytes.labels(cls).inc(batch.raw_bytes)
        metrics.wire_bytes.labels(cls).inc(len(batch.payload))
        metrics.publish_seconds.labels(cls).observe(asyncio.get_running_loop().time() - batch.sealed)
        self._refusals.stored(batch.input, cls)
        for entry in batch.entries:
            self._publisher.stored((batch.input, cls), entry, seq)

    def _refuse(self, batch: Batch, reason: Reason, text: str) -> None:
        cls = batch.id.cls
        self._forget(batch)
        self._complain(cls, text)
        if reason is Reason.FULL:
            self._publisher.without_room.add(cls)
            self._full_until[cls] = asyncio.get_running_loop().time() + FULL_PAUSE
            self._on_full()
            refusal = no_room(text)
        else:
            refusal = RefusedError(reason, f"the local stream refuses: {text}")
        self._refusals.batch(batch, refusal)

    def _forget(self, batch: Batch) -> None:
        del self._in_flight[batch.serial]
        self._progress.set()
        self._publisher.queued.set()
