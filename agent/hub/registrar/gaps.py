"""Looks for messages that the hub's server took for old and never stored, though it acknowledged them.

Seen on nats-server 2.15.1, and by its source code: a server that asks a leaf for a source takes all as held
that the link consumer has delivered by the answer. A leaf that is slow may deliver before it answers, while
the hub does not listen yet. Once a later message is stored, cursor and checkpoint look well.

So after each moment at which the server may have asked, the leaf's sequences in the aggregate are read, and
nothing behind a gap counts as confirmed until the leaf has said what it still holds: what it has discarded,
trimmed or purged lies below its first message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from nats.aio.client import Client

from agent.base.wait import Pacer, bounded_gather, loop_time
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
from agent.hub.registrar.aggregate import ALIVE, Observation, parse_source_header
from agent.hub.registrar.answer import proposal
from agent.hub.registrar.records import ClassRecord, HubPosition, LeafRecord
from agent.jetstream import JetStream, StreamInfo
from agent.jetstream.readers import StoredHeaders, read_headers

SETTLE_SECONDS: Final = 10.0
"""From the last sign that the server may ask until it has: it asks 0.2 s after a link is up, again after 2 s
where the leaf's answer does not fit, and is silent for more than `ALIVE` while it waits for an answer."""
ANSWER_SECONDS: Final = 5.0
"""A leaf waits no longer for an answer, so a later announcement was made after this one came."""
_READ_SECONDS: Final = 2.0
"""An announcement is answered within four."""
_EXPLAINED_SECONDS: Final = 150.0
"""An agent that lives has announced itself twice by then, also over a `thin` link."""
_PURGE_SECONDS: Final = 10.0
"""`ingest` waits half a minute for its purge."""
_AT_ONCE: Final = 4
"""Reads of aggregates: after a start of the server all leaves are read, and their announcements go before."""


@dataclass(slots=True)
class SkippedRange:
    """Sequences of a leaf that are not in the aggregate though later ones are."""

    first: int
    last: int
    hub_seq: int
    """Up to which sequence the aggregate has no gap before this one."""
    before: Checkpoint | None
    """The newest message with an id before the gap, None where none was read."""
    found_at: float


@dataclass(slots=True)
class Stretch:
    """How far one epoch is known to be in the aggregate without a gap. Pure."""

    epoch: str
    seq: int
    """The leaf's sequence, 0 if it is not known where the epoch begins."""
    hub_seq: int
    """The aggregate's sequence up to which that is the newest."""
    linked_at: float = 0.0
    doubt_until: float | None = None
    """Until when the server may ask; None if all that it holds is without a gap."""
    asked_by: int | None = None
    """What it held when it had asked for certain: only a message behind that shows what came of it."""
    newest: Checkpoint | None = None
    gaps: list[SkippedRange] = field(default_factory=list)

    @property
    def whole_to(self) -> int:
        """Up to which sequence of the aggregate nothing of the epoch is missing."""
        if self.gaps:
            return self.gaps[0].hub_seq
        return MAX_INT if self.doubt_until is None else self.hub_seq

    def covers(self, held: HubPosition | None) -> bool:
        """Whether nothing is missing below what the hub holds."""
        return held is None or (held.hub_seq or held.last) <= self.whole_to

    def may_purge_to(self, now: float) -> int:
        """Up to which sequence the aggregate may be purged: a registrar that starts again has to find a gap
        that the leaf has not explained yet. One whose agent is away holds nothing up."""
        recent = (gap.hub_seq for gap in self.gaps if now < gap.found_at + _EXPLAINED_SECONDS)
        return next(recent, MAX_INT)

    def doubt(self, now: float) -> None:
        """The hub's server may ask from now on."""
        self.doubt_until, self.asked_by = now + SETTLE_SECONDS, None

    def settle(self, held: int, now: float) -> None:
        """The source is alive, and the aggregate held so much of the leaf at `now`."""
        if self.doubt_until is not None and self.asked_by is None and now >= self.doubt_until:
            self.asked_by = max(held, self.seq)

    def take(self, seq: int, message_id: str, place: Checkpoint, now: float) -> None:
        """One message of the aggregate, in its order; `place` says where it is."""
        if seq <= self.seq:
            self.gaps = [gap for gap in self.gaps if not _filled(gap, seq)]
            return
        if self.seq and seq > self.seq + 1:
            self.gaps.append(SkippedRange(self.seq + 1, seq - 1, self.hub_seq, self.newest, now))
        self.seq, self.hub_seq = seq, place.hub_seq
        if message_id:
            self.newest = place
        self._end_doubt()

    def read(self, held: HubPosition, stream: str) -> None:
        """All up to what the hub holds was read, or is there without a doubt."""
        self.seq = max(self.seq, held.seq)
        if self.seq == held.seq:
            self.hub_seq = max(self.hub_seq, held.hub_seq or held.last)
            self.newest = proposal(held, stream) or self.newest
        self._end_doubt()

    def _end_doubt(self) -> None:
        if self.asked_by is not None and self.seq > self.asked_by:
            self.doubt_until = self.asked_by = None

    def lost(self, first: int, asked: float) -> SkippedRange | None:
        """The first gap of which the leaf still holds messages, None if there is none or it has not said so
        yet: its stream begins at `first` by an announcement that came at `asked`. What it discards goes from
        its beginning, so a gap that was found before is explained by then."""
        self.gaps = [gap for gap in self.gaps if gap.last >= first]
        said = (gap for gap in self.gaps if asked > gap.found_at + ANSWER_SECONDS)
        return next(said, None)


def _follows(held: HubPosition, stretch: Stretch) -> bool:
    """Whether nothing can be missing in between."""
    return held.seq <= stretch.seq + (stretch.seq > 0)


def _filled(gap: SkippedRange, seq: int) -> bool:
    """Take a message that came again, in order; whether the gap is no more."""
    if gap.first == seq:
        gap.first += 1
    return gap.first > gap.last


def stretch_at_start(record: ClassRecord, now: float) -> Stretch:
    """How far the epoch of a record is known to be there, when the server may have asked unseen: up to the
    newest checkpoint of both sides, for none is proposed behind what was read."""
    held, known = record.held, (record.checkpoint, record.proposed)
    places = [place for place in known if place is not None and place.hub_stream == record.stream]
    newest = max(places, key=lambda place: place.leaf_seq, default=None)
    if newest is None:
        stretch = Stretch(record.epoch, 0, record.since)
    else:
        is_last = held is not None and held.seq == newest.leaf_seq
        hub_seq = max(newest.hub_seq, held.last) if held is not None and is_last else newest.hub_seq
        stretch = Stretch(record.epoch, newest.leaf_seq, hub_seq, newest=newest)
    stretch.doubt(now)
    return stretch


class GapSearch:
    """Reads the aggregates for gaps. Its methods that read raise `ApiError` or `UnavailableError`."""

    def __init__(self, nc: Client, js: JetStream) -> None:
        self._nc, self._js = nc, js
        self._stretches: dict[str, Stretch] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, leaves: Iterable[LeafRecord], now: float) -> None:
        """The hub's server may have started, and asked each leaf before anybody looked."""
        self._stretches.clear()
        pacer = Pacer()
        for leaf in leaves:
            await pacer.give_way()
            for cls, record in leaf.classes.items():
                self._stretches[leaf_stream(leaf.domain, cls)] = stretch_at_start(record, now)

    def note(self, seen: Observation) -> None:
        """A look at an aggregate: the server asks for a source that it does not hear."""
        for name, state in seen.states.items():
            stretch = self._stretches.get(name)
            if stretch is None or state.consumer != link_consumer(stretch.epoch):
                continue
            if not state.alive(ALIVE):
                stretch.doubt(seen.asked)
            else:
                stretch.settle(state.seq, seen.asked)

    async def look(
        self, domain: str, cls: str, record: ClassRecord, info: StreamInfo, linked_at: float = 0.0
    ) -> Stretch:
        """How far the epoch of a record is there without a gap; `linked_at` is when the leaf's newest link
        came up. While many are read it is what was known before."""
        stretch = self._stretch(domain, cls, record, linked_at)
        if stretch.linked_at < linked_at:
            stretch.linked_at = linked_at
            stretch.doubt(linked_at)
        held = record.held
        if held is None or record.lost:
            return stretch
        if stretch.doubt_until is None:
            stretch.read(held, info.name)
        elif _follows(held, stretch) or not self._places.locked():
            await self._read(domain, cls, stretch, held, info)
        return stretch

    async def read_up_to(
        self, records: Iterable[tuple[LeafRecord, str, ClassRecord]], info: StreamInfo
    ) -> int:
        """Read what is not read yet of an aggregate that is going to be purged; up to where that was done."""
        limit, until = MAX_INT, loop_time() + _PURGE_SECONDS

        async def read(entry: tuple[LeafRecord, str, ClassRecord]) -> None:
            nonlocal limit
            leaf, cls, record = entry
            stretch = self._stretches.get(leaf_stream(leaf.domain, cls))
            if stretch is None or stretch.epoch != record.epoch or stretch.covers(record.held):
                return
            if record.held is not None and not record.lost:
                if loop_time() < until:
                    await self._read(leaf.domain, cls, stretch, record.held, info)
                limit = min(limit, stretch.may_purge_to(loop_time()))
                if stretch.doubt_until is not None and not _follows(record.held, stretch):
                    limit = min(limit, stretch.hub_seq)

        await bounded_gather(read, list(records))
        return limit

    def _stretch(self, domain: str, cls: str, record: ClassRecord, linked_at: float) -> Stretch:
        name = leaf_stream(domain, cls)
        stretch = self._stretches.get(name)
        if stretch is None or stretch.epoch != record.epoch:
            # The server listens to a consumer that is new only after the leaf has answered.
            stretch = self._stretches[name] = Stretch(record.epoch, 0, record.since, linked_at)
        return stretch

    async def _read(
        self, domain: str, cls: str, stretch: Stretch, held: HubPosition, info: StreamInfo
    ) -> None:
        """Read on up to what the hub holds, as far as that goes in a moment."""
        name, ended = leaf_stream(domain, cls), True

        def take(message: StoredHeaders) -> None:
            try:
                stream, seq = parse_source_header(message.headers.get(H_SOURCE, ""))
            except ContractError:
                return
            if stream == name:
                message_id = message.headers.get(H_MESSAGE_ID, "")
                place = Checkpoint(seq, message_id, info.name, message.seq)
                stretch.take(seq, message_id, place, loop_time())

        if not _follows(held, stretch):
            async with self._places:
                if stretch.hub_seq + 1 < info.first:
                    stretch.seq = 0  # what was purged in between was not read
                until = loop_time() + _READ_SECONDS
                start = {
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": max(stretch.hub_seq + 1, info.first),
                    "filter_subject": leaf_subjects(domain, cls),
                }
                ended = await read_headers(
                    self._nc,
                    self._js,
                    info.name,
                    start,
                    take,
                    enough=lambda: stretch.doubt_until is None or loop_time() > until,
                )
        if ended or stretch.doubt_until is None or stretch.seq >= held.seq:
            stretch.read(held, info.name)
