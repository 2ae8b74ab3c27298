"""Whether what has gone from a stream is at the hub. Pure.

The hub takes a stream in order, so it has every message that was still there when its cursor passed it. Of
those that went before anybody looked, the link consumer tells: while its count of deliveries has grown by as
much as the sequence it has delivered, it has skipped none. After a reconnection of the link it counts anew
(seen on nats-server 2.15.1), as it does where it skipped: then what had gone by then is claimed, and the
audit takes off what came.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.leaf.ledger.evictions.record import EvictionRecord


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
