"""What the link controller observes of one class at one moment: plain values on which alone it decides.

Times are monotonic seconds; sequences are those of the leaf's stream.

`lag: 0` is never believed. Seen on nats-server 2.15.1: after a store was restored from a backup and data
flowed again, every cursor looks well though messages are missing for good; only a message that both sides
agreed on earlier (the checkpoint) still shows it. Before data has flowed, the cursors show it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.leaf.link.guard import EpochReason, NewEpoch

CAUGHT_UP: Final = 64
"""Messages that a class may still have to send: what flows all the time is never quite at the end."""
TURN_SECONDS: Final = 60.0
"""A class that has not caught up by then shares the link with the others: it may never catch up."""


@dataclass(frozen=True, slots=True)
class UplinkStatus:
    """The connection of the leaf's server to its hub: whether it is `up`, since when, and a `key` that
    another connection does not share. `closed` is a sentence where the link is down because it shall be."""

    up: bool
    since: float
    key: str = ""
    closed: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The link consumer: `start` is where its epoch begins, `paused_for` the seconds of pause that are left,
    `bound` whether the hub listens, `delivered` and `floor` (the ack floor) sequences, `in_flight` how many
    messages are delivered and not acknowledged, `pending` how many are not delivered."""

    start: int
    paused_for: float
    bound: bool
    delivered: int
    floor: int
    in_flight: int
    pending: int


@dataclass(frozen=True, slots=True)
class HubComparison:
    """The hub's answer to one announcement, beside what the leaf holds.

    `asked` is when it was asked, over the link of `link_key`, for the link of `epoch`. `floor` and `start`
    are the consumer's as they were before the question, so that a healthy `cursor` is never below; `first`
    and `last` are the stream's after the answer. `same` says whether the leaf's message at the cursor is the
    hub's (None where that cannot be told: nothing there, or no id on either side); `checkpoint` is the leaf
    sequence of the agreed checkpoint (0: there is none), `own` whether the leaf still holds that message, and
    `agreed` whether the hub does (None: nobody can tell). `certain` is False where the hub says that its
    cursor may be too low. `word` is the hub's own word of state. `fallback` is the leaf sequence up to which
    a hub that lacks something still holds all, 0 where it does not tell or the leaf holds another message.
    """

    asked: float
    link_key: str
    epoch: str
    start: int
    floor: int
    first: int
    last: int
    cursor: int
    same: bool | None
    checkpoint: int
    own: bool
    agreed: bool | None
    certain: bool
    word: str
    fallback: int = 0


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """Everything about one class. `consumer` is None where the link consumer is gone. `refused` is the hub's
    sentence when its newest answer refused this leaf; `silent_since` is when it was first asked in vain since
    its last answer, None while it answers. `held_until` is until when a person wants the link paused (0:
    nobody does), `blocking_class` the class that goes before this one. A new epoch may begin at
    `may_repair_at`."""

    now: float
    epoch: str
    link: UplinkStatus
    consumer: ConsumerStatus | None
    comparison: HubComparison | None = None
    refused: str | None = None
    silent_since: float | None = None
    held_until: float = 0.0
    blocking_class: str = ""
    may_repair_at: float = 0.0


def difference(seen: HubComparison) -> NewEpoch | None:
    """The new epoch that is needed, None where nothing speaks against what both sides hold. It starts after
    the last place on which both agree, or at the first message: what arrives twice is dropped at the
    table."""
    why = _why(seen)
    if why is None:
        return None
    start = agreed_start(seen)
    return NewEpoch(why, start, _gone(seen, start) if why is EpochReason.HUB_LOST else None)


def agreed_start(seen: HubComparison) -> int:
    """Where an epoch begins that loses nothing: after the highest message of which both sides are known to
    hold the same.

    The message at the cursor proves that only while nothing has flowed since a store was restored: so long as
    no agreed checkpoint is disputed, or the hub's cursor is still below what it had acknowledged. A cursor
    below the checkpoint proves nothing, for the floor from which data flows again may stand lower still.
    """
    start = checkpoint_start(seen)
    untouched = seen.agreed is not False or _below_floor(seen)
    if seen.same and seen.own and untouched and 0 < seen.cursor <= seen.last:
        start = max(start, seen.cursor + 1)
    return start


def checkpoint_start(seen: HubComparison) -> int:
    """The place after the newest checkpoint that both are known to hold, otherwise the first message."""
    agreed = seen.checkpoint if seen.own and seen.agreed else 0
    return max(agreed, seen.fallback) + 1


def confirmed(seen: HubComparison) -> int:
    """Up to which sequence the hub is known to hold everything of this leaf, 0 where nothing is known."""
    if _why(seen) is not None:
        return 0
    checkpoint = seen.checkpoint if seen.agreed and seen.own else 0
    return max(checkpoint, seen.cursor if seen.same else 0)


def discarded(seen: HubComparison, known: int) -> tuple[int, int] | None:
    """The first and last sequence that went from the leaf's stream before the hub had them; `known` is up to
    where the hub was known to hold all earlier in this epoch. None where nothing is known of what the hub
    holds."""
    held = max(seen.cursor, confirmed(seen), known, seen.start - 1)
    return (held + 1, seen.first - 1) if held and seen.first > held + 1 else None


def _why(seen: HubComparison) -> EpochReason | None:
    if not seen.own:
        return EpochReason.PUT_BACK
    if seen.cursor > seen.last:
        return EpochReason.PUT_BACK
    if seen.same is False:
        return EpochReason.DIFFERENT
    if seen.agreed is False:
        return EpochReason.HUB_LOST
    return EpochReason.HUB_LOST if seen.certain and _below_floor(seen) else None


def _below_floor(seen: HubComparison) -> bool:
    """Whether the hub holds less than it has acknowledged. The floor of an epoch that has stored nothing yet
    is where the epoch begins, and a purge of the leaf's stream lifts it: nobody acknowledged that."""
    return seen.cursor < seen.floor and seen.floor >= max(seen.start, seen.first)


def _gone(seen: HubComparison, start: int) -> tuple[int, int] | None:
    """What the hub lost and the leaf has purged since."""
    return (start, seen.first - 1) if start > 1 and seen.first > start else None


def blocking_class(cls: str, priorities: Mapping[str, int], behind: Mapping[str, int], linked: float) -> str:
    """The class that `cls` waits for, "" where it may flow. The smallest priority goes first; classes of one
    priority go together. `behind` is how many messages each still has to send, `linked` for how many seconds
    the link has been up."""
    if linked >= TURN_SECONDS:
        return ""
    before = [
        name
        for name, priority in priorities.items()
        if priority < priorities[cls] and behind.get(name, 0) > CAUGHT_UP
    ]
    return min(before, key=lambda name: (priorities[name], name), default="")
