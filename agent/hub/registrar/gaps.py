"""Searches messages that the hub's server acknowledged but never stored.

A leaf's nats-server before 2.15.3 may deliver before its answer to a source request, while the hub does not
listen. Since 2.15.3 the answer has the reset position (`resetInfo` in server/consumer.go): remove this when
no older leaf runs.

After each possible request the leaf's sequences are read; nothing after a gap is confirmed until the leaf
reports its first message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Final

import structlog

from agent.base.wait import Pacer, bounded_gather, loop_time, timeout
from agent.contract import (
    H_MESSAGE_ID,
    H_SOURCE,
    MAX_INT,
    Checkpoint,
    ContractError,
    leaf_stream,
    leaf_subjects,
    link_consumer,
)
from agent.hub.cells import CellStreams
from agent.hub.registrar.aggregate import ALIVE, Observation, parse_source_header
from agent.hub.registrar.records import ClassRecord, HubPosition, LeafRecord
from agent.hub.registrar.stretch import Stretch, follows, stretch_at_start
from agent.jetstream import JetStreamError, StreamInfo
from agent.jetstream.readers import StoredHeaders, read_headers

_READ_SECONDS: Final = 2.0
_STALLED_SECONDS: Final = 3.0
"""For a silent server; announcements are answered within four."""
_PURGE_SECONDS: Final = 10.0
"""`ingest` waits half a minute."""
_AT_ONCE: Final = 4
"""Parallel reads; announcements go first."""

log = structlog.get_logger("registrar")


class GapSearch:
    """Searches aggregates; `linked_at` returns a leaf's link time (0: unknown), `observe` an observation."""

    def __init__(
        self,
        streams: CellStreams,
        linked_at: Callable[[str], float],
        observe: Callable[[str], Awaitable[Observation]],
    ) -> None:
        self._streams, self._linked_at, self._observe = streams, linked_at, observe
        self._stretches: dict[str, Stretch] = {}
        self._noted: dict[str, Observation] = {}
        self._begun: dict[str, str] = {}
        """Leader at an epoch's start, by stream, without stretch yet."""
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, leaves: Iterable[LeafRecord], now: float) -> None:
        """Assume that a restarted server asked all leaves."""
        self._stretches.clear()
        self._noted.clear()
        self._begun.clear()
        pacer = Pacer()
        for leaf in leaves:
            await pacer.give_way()
            for cls, record in leaf.classes.items():
                self._stretches[leaf_stream(leaf.domain, cls)] = stretch_at_start(record, now)

    def begin_epoch(self, domain: str, cls: str, seen: Observation) -> None:
        """Note an epoch's coming source and an earlier look."""
        self._begun[leaf_stream(domain, cls)] = seen.info.leader

    def note(self, seen: Observation) -> None:
        """Note a look: servers ask for silent sources, new leaders for all."""
        before = self._noted.get(seen.info.name)
        if before is not None and seen.asked <= before.asked:
            return
        self._noted[seen.info.name] = seen
        has_moved = before is not None and before.info.leader != seen.info.leader
        for name, consumer in seen.consumers.items():
            stretch = self._stretches.get(name)
            if stretch is None or consumer != link_consumer(stretch.epoch):
                continue
            state = seen.states.get(name)  # a server that leads just now may tell of none yet
            if has_moved or state is None or not state.alive(ALIVE):
                stretch.doubt(seen.asked)
            else:
                stretch.settle(state.seq, seen.asked)

    async def look(self, domain: str, cls: str, record: ClassRecord, seen: Observation) -> Stretch:
        """Return how far an epoch is complete, by earlier reads while too many aggregates are read."""
        stretch, held, info = self._stretch(domain, cls, record, seen), record.held, seen.info
        if held is None or record.lost:
            return stretch
        if info.leader and held.hub_seq > info.last:
            # That message came after the look, maybe to another server that leads since.
            self.note(await self._observe(info.name))
        if stretch.doubt_until is None:
            stretch.read(held, info.name)
        elif follows(held, stretch) or not self._places.locked():
            await self._read(domain, cls, stretch, held, info)
        return stretch

    async def read_up_to(
        self, records: Iterable[tuple[LeafRecord, str, ClassRecord]], seen: Observation
    ) -> int:
        """Read unread messages before a purge; returns the end."""
        limit, until, info = MAX_INT, loop_time() + _PURGE_SECONDS, seen.info
        if info.leader:
            self.note(await self._observe(info.name))

        async def read(entry: tuple[LeafRecord, str, ClassRecord]) -> None:
            nonlocal limit
            leaf, cls, record = entry
            held = record.held
            if held is None or record.lost:
                return
            stretch = self._stretch(leaf.domain, cls, record, seen)
            if stretch.doubt_until is None:
                stretch.read(held, info.name)
            if not stretch.covers(held):
                await self._read(leaf.domain, cls, stretch, held, info, until)
                limit = min(limit, stretch.may_purge_to(loop_time()))
                if stretch.doubt_until is not None and not follows(held, stretch):
                    limit = min(limit, stretch.hub_seq)
            if not record.unsure:
                stretch.ended(held, info.last)

        await bounded_gather(read, list(records))
        return limit

    def _stretch(self, domain: str, cls: str, record: ClassRecord, seen: Observation) -> Stretch:
        self.note(seen)
        name, linked_at = leaf_stream(domain, cls), self._linked_at(domain)
        stretch = self._stretches.get(name)
        if stretch is None or stretch.epoch != record.epoch:
            # The server that adds a source listens only after the leaf has answered.
            stretch = self._stretches[name] = Stretch(record.epoch, 0, record.since, linked_at)
            noted = self._noted[seen.info.name]
            if self._begun.pop(name, noted.info.leader) != noted.info.leader:
                stretch.doubt(noted.asked)
        if stretch.linked_at < linked_at:
            stretch.linked_at = linked_at
            stretch.doubt(linked_at)
        return stretch

    async def _read(
        self,
        domain: str,
        cls: str,
        stretch: Stretch,
        held: HubPosition,
        info: StreamInfo,
        until: float = inf,
    ) -> None:
        """Read on for a moment."""
        whole = follows(held, stretch)
        if not whole:
            async with self._places:
                if loop_time() < until:
                    ended = await self._read_on(domain, cls, stretch, info)
                    whole = ended and stretch.reached(held, info.first)
        if whole or stretch.doubt_until is None or stretch.seq >= held.seq:
            stretch.read(held, info.name)

    async def _read_on(self, domain: str, cls: str, stretch: Stretch, info: StreamInfo) -> bool:
        """Read on; returns whether the end was met."""
        name = leaf_stream(domain, cls)

        def take(message: StoredHeaders) -> None:
            try:
                stream, seq = parse_source_header(message.headers.get(H_SOURCE, ""))
            except ContractError:
                return
            if stream == name:
                message_id = message.headers.get(H_MESSAGE_ID, "")
                place = Checkpoint(seq, message_id, info.name, message.seq)
                stretch.take(seq, message_id, place, loop_time())

        if stretch.hub_seq + 1 < info.first:
            stretch.seq = 0  # what was purged in between was not read
        start = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(stretch.hub_seq + 1, info.first),
            "filter_subject": leaf_subjects(domain, cls),
        }
        until = loop_time() + _READ_SECONDS

        def enough() -> bool:
            return stretch.doubt_until is None or loop_time() > until

        try:
            async with timeout(_STALLED_SECONDS):
                js = self._streams.of(info.name)
                return await read_headers(js.nc, js, info.name, start, take, enough)
        except (TimeoutError, JetStreamError) as error:
            why = str(error) or "no answer"
            log.info("aggregate not read yet", stream=info.name, leaf=domain, reason=why)
            return False
