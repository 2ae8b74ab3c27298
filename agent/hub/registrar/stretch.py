"""Tracks how far an epoch is complete in the aggregate, for `agent.hub.registrar.gaps`. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from agent.contract import MAX_INT, Checkpoint
from agent.hub.registrar.answer import proposal
from agent.hub.registrar.records import ClassRecord, HubPosition

SETTLE_SECONDS: Final = 10.0
"""Time until a server surely asked: 0.2 s after link-up, again after 2 s, then silent beyond `ALIVE`."""
ANSWER_SECONDS: Final = 5.0
"""Leaves' wait; a later announcement followed this answer."""
_EXPLAINED_SECONDS: Final = 150.0
"""Time for two announcements, even `thin`."""


class SkippedRange(Struct):
    """Missing leaf sequences with later ones present."""

    first: int
    last: int
    hub_seq: int
    """Complete aggregate sequence before it."""
    before: Checkpoint | None
    """Newest message with id before it, or None."""
    found_at: float


class Stretch(Struct):
    """The complete part of an epoch. Pure."""

    epoch: str
    seq: int
    """Leaf sequence, 0 if the start is unknown."""
    hub_seq: int
    """Aggregate sequence up to which `seq` is the newest."""
    linked_at: float = 0.0
    doubt_until: float | None = None
    """Until when the server may ask; None if complete."""
    asked_by: int | None = None
    """Position when it surely had asked; only later messages show the result."""
    newest: Checkpoint | None = None
    gaps: list[SkippedRange] = field(default_factory=list)

    @property
    def whole_to(self) -> int:
        """Return the complete aggregate sequence."""
        if self.gaps:
            return self.gaps[0].hub_seq
        return MAX_INT if self.doubt_until is None else self.hub_seq

    def covers(self, held: HubPosition | None) -> bool:
        """Tell whether everything held is complete."""
        return held is None or (held.hub_seq or held.last) <= self.whole_to

    def may_purge_to(self, now: float) -> int:
        """Return the purge limit: unexplained gaps stay findable, unless the agent is silent."""
        recent = (gap.hub_seq for gap in self.gaps if now < gap.found_at + _EXPLAINED_SECONDS)
        return next(recent, MAX_INT)

    def doubt(self, now: float) -> None:
        """Note that the server may ask."""
        self.doubt_until, self.asked_by = now + SETTLE_SECONDS, None

    def settle(self, held: int, now: float) -> None:
        """Note a living source with this position."""
        if self.doubt_until is not None and self.asked_by is None and now >= self.doubt_until:
            self.asked_by = max(held, self.seq)

    def take(self, seq: int, message_id: str, place: Checkpoint, now: float) -> None:
        """Take an aggregate's message in order, at `place`."""
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
        """Note everything held as read, except a position without hub sequence outside doubt.

        A server of a cluster counts messages before its peers have them, and a peer may lead before it has
        them.
        """
        if self.doubt_until is None and not held.hub_seq and held.seq > self.seq:
            return
        self.seq = max(self.seq, held.seq)
        if self.seq == held.seq:
            self.hub_seq = max(self.hub_seq, held.hub_seq or held.last)
            self.newest = proposal(held, stream) or self.newest
        self._end_doubt()

    def ended(self, held: HubPosition, last: int) -> None:
        """Note that the aggregate ended at `last` with nothing after `held`, so the rest need not be read."""
        if self.seq == held.seq:
            self.hub_seq = max(self.hub_seq, last)

    def reached(self, held: HubPosition, first: int) -> bool:
        """Tell whether a read to the aggregate's end met everything held, or the rest was purged (`first`).

        A lagging replica ends early. A message of unknown place counts as missing unless more was purged than
        read.
        """
        return self.seq >= held.seq or (held.hub_seq or self.hub_seq + 1) < first

    def _end_doubt(self) -> None:
        if self.asked_by is not None and self.seq > self.asked_by:
            self.doubt_until = self.asked_by = None

    def lost(self, first: int, asked: float) -> SkippedRange | None:
        """Return the first gap that the leaf still holds, by its `first` sequence announced at `asked`, or
        None. Leaves discard from the beginning, so earlier gaps are explained.
        """
        self.gaps = [gap for gap in self.gaps if gap.last >= first]
        said = (gap for gap in self.gaps if asked > gap.found_at + ANSWER_SECONDS)
        return next(said, None)


def follows(held: HubPosition, stretch: Stretch) -> bool:
    """Tell whether nothing can be missing between: the next message was seen in the aggregate."""
    return held.seq <= stretch.seq + (stretch.seq > 0 and held.hub_seq > 0)


def _filled(gap: SkippedRange, seq: int) -> bool:
    """Fill a gap by a repeated message; returns whether closed."""
    if gap.first == seq:
        gap.first += 1
    return gap.first > gap.last


def stretch_at_start(record: ClassRecord, now: float) -> Stretch:
    """Return a record's known part after unseen requests: up to the newest checkpoint of this epoch.

    No checkpoint is proposed above read messages. An earlier epoch's may have a sequence of a lost store.
    """
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
