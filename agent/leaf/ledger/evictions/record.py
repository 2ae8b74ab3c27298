"""What a stream evicted, how that is classified, and how it is kept on disk. Pure.

A batch is claimed when it went from the stream before the hub was known to have it. That is at most too much,
never too little: the audit, which sees what arrived, subtracts what the hub had all the same.

The hub takes a stream in order, so it has every message that was still there when its cursor passed it. Of
those that went between two looks, the link consumer tells: while its count of deliveries has grown by as much
as the sequence it has delivered, it has skipped none. After a reconnection of the link it counts from zero
(seen on nats-server 2.15.1), as it does where it skipped: then what had gone by then is claimed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from agent.leaf.ledger.evictions.index import IndexedMessage

VERSION: Final = 1
FULL: Final = "stream_full"
PURGED: Final = "purged"
"""Reasons: the stream was full and made room for newer messages; or it was not, and somebody purged it."""

MAX_RANGES: Final = 1_000
"""Ranges of a run that are named; of more than that the lowest are in the sums only."""
MAX_RUNS: Final = 64
MAX_DOUBTFUL: Final = 20_000
"""Messages that were sent and not known to be at the hub when they went; the link has 10,000 of them under
way at most."""

Range = tuple[int, int, int, str]
"""First, last, how many readings (or direct messages), and the reason."""


def extend(ranges: list[Range], first: int, last: int, count: int, reason: str) -> bool:
    """Put numbers into ranges that are in order; False where they are there already. A neighbour of the same
    reason is joined."""
    at = bisect_right(ranges, first, key=lambda one: one[0])
    before = ranges[at - 1] if at else None
    if before is not None and last <= before[1]:
        return False
    if before is not None and before[1] == first - 1 and before[3] == reason:
        first, count, at = before[0], count + before[2], at - 1
        del ranges[at]
    after = ranges[at] if at < len(ranges) else None
    if after is not None and after[0] == last + 1 and after[3] == reason:
        last, count = after[1], count + after[2]
        del ranges[at]
    ranges.insert(at, (first, last, count, reason))
    return True


class RunClaims(Struct):
    """What was discarded of one run: `ranges` of numbers of batches, and all their `readings`. `recorded` is
    where a record says so that the stream still holds or the hub has, 0 where one is due."""

    ranges: list[Range] = []
    readings: int = 0
    recorded: int = 0


class EvictionRecord(Struct):
    """One class. All up to sequence `judged` of the stream made at `created` is judged, all up to `taken` is
    known to be at the hub; `delivered` and `deliveries` are up to which sequence and how often the link
    consumer of `epoch` had delivered then. `doubtful` was sent and may be at the hub or not. `gone` are the
    sequences that were discarded, with how many direct messages stood there."""

    version: int = VERSION
    created: str = ""
    judged: int = 0
    taken: int = 0
    epoch: str = ""
    delivered: int = 0
    deliveries: int = 0
    doubtful: list[tuple[int, str, int, int]] = []
    runs: dict[str, RunClaims] = {}
    gone: list[Range] = []

    def begin(self, created: str, judged: int) -> None:
        """The stream is one of which nothing is known up to this sequence."""
        self.created, self.judged, self.taken, self.epoch = created, judged, 0, ""
        self.doubtful, self.gone = [], []

    def claim(self, entry: IndexedMessage, reason: str) -> int:
        """A message of the agent was discarded; returns its readings."""
        for one in self.runs.values():
            if one.recorded == entry.seq:
                one.recorded = 0
        if not entry.run:
            return 0
        known = self.runs.setdefault(entry.run, RunClaims())
        if not extend(known.ranges, entry.n, entry.n, entry.readings, reason):
            return 0
        known.readings += entry.readings
        known.recorded = 0
        if len(known.ranges) > MAX_RANGES:
            del known.ranges[0]
        return entry.readings

    def claim_sequences(self, first: int, last: int, direct: int, reason: str) -> None:
        """These sequences were discarded."""
        extend(self.gone, first, last, direct, reason)
        if len(self.gone) > MAX_RANGES:
            del self.gone[0]

    def forget_runs(self, own: str) -> None:
        """Keep the newest runs only; runs are UUIDv7, so a later one is greater."""
        for run in sorted(self.runs)[:-MAX_RUNS]:
            if run != own:
                del self.runs[run]


@dataclass(frozen=True, slots=True)
class StreamObservation:
    """A class's stream and link at one moment, the stream first: its `first` sequence; up to where the hub is
    known to hold all of this `epoch` (`confirmed`), which begins at `start`; and up to which sequence
    (`delivered`) and how often (`deliveries`) the link consumer has delivered, and its ack floor."""

    first: int
    confirmed: int
    epoch: str
    start: int
    delivered: int
    deliveries: int
    floor: int


@dataclass(frozen=True, slots=True)
class EvictionVerdict:
    """Of the messages that are gone: those up to `taken` are at the hub, the next ones up to `doubtful` were
    sent and may be, and the rest up to `gone` are not. `settled` says whether those that were in doubt before
    and are above `taken` are not there either."""

    taken: int
    doubtful: int
    gone: int
    settled: bool


def judge(known: EvictionRecord, seen: StreamObservation) -> EvictionVerdict:
    """What became of the messages below the stream's first one."""
    taken, doubtful, settled = known.taken, 0, True
    if seen.epoch != known.epoch:
        # It begins after the last place on which leaf and hub agree.
        taken = seen.start - 1
    elif seen.delivered - known.delivered == seen.deliveries - known.deliveries:
        taken = max(taken, seen.confirmed, seen.floor)
        doubtful, settled = seen.delivered, False
    gone = max(known.judged, seen.first - 1)
    taken_of_gone = min(taken, gone)
    return EvictionVerdict(taken_of_gone, min(max(doubtful, taken_of_gone), gone), gone, settled)


def remember(known: EvictionRecord, seen: StreamObservation, verdict: EvictionVerdict) -> None:
    """Take the verdict over: the next one starts here."""
    if known.epoch not in ("", seen.epoch):
        known.taken = seen.start - 1
    elif not verdict.settled:
        known.taken = max(known.taken, seen.confirmed, seen.floor)
    elif seen.confirmed >= seen.first:
        known.taken = max(known.taken, seen.confirmed)
    known.judged, known.epoch = verdict.gone, seen.epoch
    known.delivered, known.deliveries = seen.delivered, seen.deliveries
