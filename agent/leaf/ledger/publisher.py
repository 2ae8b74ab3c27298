"""Publishes ledger records of one run, and saves what the next run needs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import structlog
from msgspec import structs

from agent import contract
from agent.base.logs import LogEdge
from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    H_RECEIPT,
    H_RESENT,
    ContractError,
    Ledger,
    Previous,
    Readings,
    StreamState,
)
from agent.jetstream import ApiError, JetStream, JetStreamError, StreamInfo, UnavailableError, nanoseconds
from agent.jetstream.client import publish_own
from agent.jetstream.readers import StoredHeaders
from agent.leaf.events import BatchStored
from agent.leaf.ledger import ClassLedger, Discarded
from agent.leaf.ledger.evictions.service import EvictionMonitor
from agent.leaf.ledger.signer import RecordSigner
from agent.leaf.state import Acked, PullPosition
from agent.leaf.state_file import StateFile

LEDGER_SECONDS = 60.0

log = structlog.get_logger("ledger")


class LedgerPublisher:
    """Publishes records at a run's start, each minute with changes, and at its end."""

    def __init__(
        self,
        domain: str,
        run: str,
        ledgers: Mapping[str, ClassLedger],
        state: StateFile,
        discards: EvictionMonitor,
        signer: RecordSigner | None = None,
    ) -> None:
        self._domain, self._run, self._ledgers, self._state = domain, run, ledgers, state
        self._discards, self._signer = discards, signer
        self._js: JetStream | None = None
        self._created: dict[str, str] = {}
        self._records = 0
        self._recorded_at: dict[str, int] = {}
        self._told: dict[str, tuple[Discarded, tuple[contract.Doubt, ...]]] = {}
        self.remembered = dict(state.current.acked)

    @contextlib.contextmanager
    def connected(self, js: JetStream, streams: Mapping[str, StreamInfo]) -> Iterator[None]:
        """Publish over this connection within the scope; `streams` are behind it."""
        self._js = js
        self._created = {cls: info.created for cls, info in streams.items()}
        for cls, info in streams.items():
            self.seen(cls, info)
        for cls, ledger in self._ledgers.items():
            ledger.lost = tuple(self._state.current.lost.get(cls, ()))
        try:
            yield
        finally:
            self._js = None

    def stored(self, batch: BatchStored) -> None:
        """Note an acknowledged batch and its input's position."""
        ident = batch.id
        self._discards.stored(ident.cls, batch.seq, ident.run, ident.n, batch.readings)
        if batch.position is not None:
            self._state.current.place(batch.input, ident.cls, PullPosition(batch.position, batch.seq))
        self._stored(ident.cls, batch.seq, batch.seq)

    def remember_position(self, input_name: str, cls: str, text: str) -> None:
        """Note a position that no message can carry, because nothing is stored."""
        known = self._state.current.positions.get(cls, {}).get(input_name)
        self._state.current.place(input_name, cls, PullPosition(text, 0 if known is None else known.seq))
        self._state.note()

    def _stored(self, cls: str, seq: int, reading: int = 0) -> None:
        ledger, known = self._ledgers[cls], self._state.current.acked.get(cls)
        stream = self._created[cls]
        if known is None or known.created != stream:
            known = Acked(self._run, 0, 0, stream, Readings())
        self._state.current.acked[cls] = Acked(
            self._run,
            ledger.highest_stored,
            max(seq, known.seq),
            stream,
            ledger.readings,
            top=known.top,
            top_time=known.top_time,
            at=max(known.at, time.time_ns()),
            reading=max(reading, known.reading),
        )
        self._state.note()

    def seen(self, cls: str, info: StreamInfo) -> None:
        """Note a stream's state; devices publish without the agent."""
        known = self._state.current.acked.get(cls)
        here = self._js is not None and self._created.get(cls) == info.created
        if here and known is not None and known.created == info.created and known.top < info.last:
            at = max(known.at, time.time_ns(), nanoseconds(info.last_time))
            self._state.current.acked[cls] = structs.replace(
                known, top=info.last, top_time=info.last_time, at=at
            )
            self._state.note()

    def recall(self, cls: str, created: str, stored_since: Iterable[StoredHeaders]) -> None:
        """Complete the previous run's state by its stream above the saved sequence.

        The file may lag behind the last PubAck. Read data counts even if the store is lost before the streams
        are ready.
        """
        known = self.remembered.get(cls)
        if known is None:
            return
        if known.created == created:
            letters = contract.dead_subject(self._domain, cls, "")
            known = self.remembered[cls] = _completed(known, stored_since, letters)
            acked = self._state.current.acked.get(cls)
            if acked is None or acked.seq < known.seq:
                self._state.current.acked[cls] = known
        self._state.current.previous[cls] = known
        self._ledgers[cls].previous = known.previous()
        self._state.mark()

    def remember(self) -> None:
        """Save the present counts for the next run."""
        for cls, known in self._state.current.acked.items():
            if known.run == self._run and cls in self._ledgers:
                self._state.current.acked[cls] = structs.replace(known, readings=self._ledgers[cls].readings)
        self._state.mark()

    def last(self, cls: str) -> Previous:
        """Return this run of a class for announcements."""
        ledger = self._ledgers[cls]
        return Previous(self._run, ledger.highest_stored, ledger.readings, False)

    async def open(self) -> None:
        """Publish first records; a full stream gets it later. Raises `UnavailableError`."""
        for cls in self._ledgers:
            try:
                if cls not in self._recorded_at:
                    await self._publish(self._js, cls, final=False)
            except ApiError as error:
                log.warning("first ledger record postponed", **{"class": cls}, error=str(error))
        # From here on the run is known even if its stream is lost; a disk that takes no state is logged
        # by what writes the file.
        with contextlib.suppress(OSError):
            await self._state.save()

    async def close(self) -> None:
        """Publish final records and save the closed state. Raises `ApiError`, `UnavailableError` or
        `OSError`.
        """
        for cls in self._ledgers:
            await self._publish(self._js, cls, final=True)
            acked = self._state.current.acked[cls]
            self._state.current.acked[cls] = structs.replace(acked, closed=True)
        await self._state.save()

    async def run(self) -> None:
        """Publish a record each minute with changes."""
        skipped = {cls: LogEdge(log.bind(**{"class": cls})) for cls in self._ledgers}
        while True:
            await asyncio.sleep(LEDGER_SECONDS)
            for cls in self._ledgers:
                try:
                    await self._publish_if_moved(self._js, cls)
                    skipped[cls].end()
                except JetStreamError as error:
                    skipped[cls].begin("ledger records skipped", error=str(error))

    async def _publish_if_moved(self, js: JetStream | None, cls: str) -> None:
        if js is None:
            return
        info = await js.stream_info(contract.leaf_stream(self._domain, cls))
        if info.last != self._recorded_at.get(cls) or self._has_news(cls):
            await self._publish(js, cls, final=False)

    async def _publish(self, js: JetStream | None, cls: str, *, final: bool) -> None:
        if js is None:
            raise UnavailableError("the local NATS server does not answer")
        info = await js.stream_info(contract.leaf_stream(self._domain, cls))
        self._ledgers[cls].doubts = tuple(self._state.current.doubts.get(cls, ()))
        record = self._ledgers[cls].record(StreamState(info.created, info.first, info.last), final=final)
        seq = await self._store(js, cls, record)
        self._recorded_at[cls] = seq
        self._stored(cls, seq)
        self._discards.stored(cls, seq)
        self._told[cls] = record.gone, record.doubts
        for run in self._discards.due(cls):
            await self._repeat(js, cls, self._discards.record(cls, run, record.stream))

    def _has_news(self, cls: str) -> bool:
        doubts = tuple(self._state.current.doubts.get(cls, ()))
        is_told = (self._ledgers[cls].gone, doubts) == self._told.get(cls)
        return not is_told or bool(self._discards.due(cls))

    async def _repeat(self, js: JetStream, cls: str, earlier: Ledger) -> None:
        """Publish later discards of an earlier run."""
        seq = await self._store(js, cls, earlier)
        self._discards.stored(cls, seq)
        self._discards.recorded(cls, earlier, seq)

    async def _store(self, js: JetStream, cls: str, record: Ledger) -> int:
        self._records += 1
        ident = f"{self._run}-{cls}-ledger-{self._records}"
        stream, subject = contract.leaf_stream(self._domain, cls), contract.ledger_subject(self._domain, cls)
        if self._signer is None:
            return await publish_own(js, stream, subject, record.encode(), ident)
        prior = self._state.current.records.get(cls)
        signed = self._signer.sign(cls, record, self._ledgers[cls].chain, prior)
        seq = await publish_own(js, stream, subject, signed.data, ident, {H_RECEIPT: signed.signature})
        self._signer.stored(cls, signed)
        self._state.current.records[cls] = signed.id
        self._state.mark()
        return seq


def _completed(known: Acked, stored_since: Iterable[StoredHeaders], letters: str) -> Acked:
    # All that was counted is at or below the last known sequence, so whatever is above it was not. A run
    # that is killed as it begins may be in the stream alone (runs are UUIDv7: a later one is greater).
    for message in stored_since:
        if H_RESENT in message.headers or message.seq <= known.seq:
            continue  # it was counted when it was stored or read first
        try:
            ident = contract.parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
            count = int(message.headers.get(H_COUNT, "0"))
        except (ContractError, ValueError):
            continue
        if ident.run > known.run:
            known = structs.replace(known, run=ident.run, n=0, readings=Readings(), closed=False)
        if ident.run == known.run:
            known = _with_batch(known, ident.n, count, dead=message.subject.startswith(letters))
        at = max(known.at, message.stored_ns)
        known = structs.replace(known, seq=message.seq, at=at, reading=message.seq)
    return known


def _with_batch(known: Acked, n: int, count: int, *, dead: bool) -> Acked:
    was = known.readings
    stored, buried = (was.stored, was.dead + count) if dead else (was.stored + count, was.dead)
    readings = replace(was, accepted=max(was.accepted, stored + buried), stored=stored, dead=buried)
    return structs.replace(known, n=max(known.n, n), readings=readings)
