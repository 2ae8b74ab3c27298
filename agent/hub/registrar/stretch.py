"""How far an epoch is known to be in the aggregate without a gap: the pure part of the search for gaps
(`agent.hub.registrar.gaps`). No clock, no connection."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from agent.contract import MAX_INT, Checkpoint
from agent.hub.registrar.answer import proposal
from agent.hub.registrar.records import ClassRecord, HubPosition

SETTLE_SECONDS: Final = 10.0
"""From the last sign that the server may ask until it has: it asks 0.2 s after a link is up, again after 2 s
where the leaf's answer does not fit, and is silent for more than `ALIVE` while it waits for an answer."""
ANSWER_SECONDS: Final = 5.0
"""A leaf waits no longer for an answer, so a later announcement was made after this one came."""
_EXPLAINED_SECONDS: Final = 150.0
"""An agent that lives has announced itself twice by then, also over a `thin` link."""


class SkippedRange(Struct):
    """Sequences of a leaf that are not in the aggregate though later ones are."""

    first: int
    last: int
    hub_seq: int
    """Up to which sequence the aggregate has no gap before this one."""
    before: Checkpoint | None
    """The newest message with an id before the gap, None where none was read."""
    found_at: float


class Stretch(Struct):
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
        that the leaf has not explained yet. A leaf whose agent says nothing holds no purge up."""
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
        """All up to what the hub holds was read, or is there without a doubt. A server of a cluster counts
        what it has received before the others have it, and another one may lead before they do."""
        if self.doubt_until is None and not held.hub_seq and held.seq > self.seq:
            return
        self.seq = max(self.seq, held.seq)
        if self.seq == held.seq:
            self.hub_seq = max(self.hub_seq, held.hub_seq or held.last)
            self.newest = proposal(held, stream) or self.newest
        self._end_doubt()

    def ended(self, held: HubPosition, last: int) -> None:
        """The aggregate ended at `last`, and held no more of the leaf than that: what goes up to there need
        not be read."""
        if self.seq == held.seq:
            self.hub_seq = max(self.hub_seq, last)

    def reached(self, held: HubPosition, first: int) -> bool:
        """Whether a read to the end of the aggregate, which begins at `first`, met all that the hub holds, or
        the rest was purged. A server of a cluster that lags behind ends sooner. A message whose place
        is not known counts as not stored, unless more was purged than was read."""
        return self.seq >= held.seq or (held.hub_seq or self.hub_seq + 1) < first

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


def follows(held: HubPosition, stretch: Stretch) -> bool:
    """Whether nothing can be missing in between: the next message was seen in the aggregate."""
    return held.seq <= stretch.seq + (stretch.seq > 0 and held.hub_seq > 0)


def _filled(gap: SkippedRange, seq: int) -> bool:
    """Take a message that came again, in order; whether the gap is no more."""
    if gap.first == seq:
        gap.first += 1
    return gap.first > gap.last


def stretch_at_start(record: ClassRecord, now: float) -> Stretch:
    """How far the epoch of a record is known to be there, when the server may have asked unseen: up to the
    newest checkpoint of both sides, for none is proposed behind what was read. One of an earlier epoch may
    tell the sequence of a store that is lost."""
    held, known = record.held, (record.checkpoint, record.proposed)
    places = [
        place
        for place in known
        if place is not None and place.hub_stream == record.stream and place.hub_seq > record.since
    ]
    newest = max(places, key=lambda place: place.leaf_seq, default=None)
    if newest is None:
        stretch = Stretch(record.epoch, 0, record.since)
    else:
        is_last = held is not None and held.seq == newest.leaf_seq
        hub_seq = max(newest.hub_seq, held.last) if held is not None and is_last else newest.hub_seq
        stretch = Stretch(record.epoch, newest.leaf_seq, hub_seq, newest=newest)
    stretch.doubt(now)
    return stretch
