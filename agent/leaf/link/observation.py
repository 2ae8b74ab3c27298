"""Defines link observations of a class. Times are monotonic seconds, sequences the leaf stream's.

`lag: 0` proves nothing: after a restore and new data all cursors look correct although messages are missing.
Only an earlier agreed message (checkpoint) shows that. Before data has flowed, the cursors show it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from agent.jetstream import ConsumerInfo
from agent.leaf.link.guard import EpochReason, NewEpoch

CAUGHT_UP: Final = 64
"""Messages a caught-up class may still have."""
TURN_SECONDS: Final = 60.0
"""Time after which a lagging class shares the link."""


class UplinkStatus(Struct, frozen=True):
    """The server's hub connection."""

    up: bool
    since: float
    """Time of the last change."""
    key: str = ""
    """Unique per connection."""
    closed: str = ""
    """Why it is closed on purpose."""
    cause: str = ""
    """Why it is down, if known."""


class HubComparison(Struct, frozen=True):
    """The hub's answer compared with the leaf."""

    asked_at: float
    link_key: str
    """Its connection."""
    epoch: str
    start: int
    """The consumer's start."""
    floor: int
    """Ack floor before the question; a healthy `cursor` is not below."""
    first: int
    """First sequence after the answer."""
    last: int
    """Last sequence after the answer."""
    cursor: int
    same_at_cursor: bool | None
    """Whether both have the same message at the cursor; None if none is there, or one has no id."""
    checkpoint: int
    """Leaf sequence of the agreed checkpoint, 0 for none."""
    has_checkpoint: bool
    """Whether the leaf holds it."""
    hub_agrees: bool | None
    """Whether the hub holds it, None if unknown."""
    cursor_certain: bool
    """False if the cursor may be too low."""
    hub_state: str
    """The hub's word."""
    fallback: int = 0
    """Sequence up to which a lacking hub has all; 0 if unknown or different here."""
    synced: bool = True
    """False if a power cut may take the cursor."""


class LinkObservation(Struct, frozen=True):
    """All observations of a class."""

    now: float
    epoch: str
    link: UplinkStatus
    consumer: ConsumerInfo | None
    """None if gone."""
    comparison: HubComparison | None = None
    refused: str | None = None
    """The hub's refusal of leaf or class."""
    silent_since: float | None = None
    """First unanswered request, or None."""
    paused_until: float = 0.0
    """End of a commanded pause, 0 for none."""
    blocking_class: str = ""
    """The class that goes first."""
    not_arriving: str = ""
    """Message that did not arrive over several links, "" if none."""
    may_repair_at: float = 0.0
    """Earliest new epoch."""


def difference(comparison: HubComparison) -> NewEpoch | None:
    """Return the needed epoch, None without contradiction. It starts after the last agreed message, or at
    the first; the tables drop duplicates.
    """
    reason = _reason(comparison)
    if reason is None:
        return None
    start = agreed_start(comparison)
    return NewEpoch(reason, start, _lost(comparison, start) if reason is EpochReason.HUB_LOST else None)


def agreed_start(comparison: HubComparison) -> int:
    """Return a start that loses nothing: after the highest common message.

    The message at the cursor proves that only while nothing flowed since a restore: no checkpoint is
    disputed, or the cursor is below the acknowledged. A cursor below the checkpoint proves nothing, because
    data may flow again from a lower floor.
    """
    start = checkpoint_start(comparison)
    untouched = comparison.hub_agrees is not False or _below_floor(comparison)
    if (
        comparison.same_at_cursor
        and comparison.has_checkpoint
        and untouched
        and 0 < comparison.cursor <= comparison.last
    ):
        start = max(start, comparison.cursor + 1)
    return start


def checkpoint_start(comparison: HubComparison) -> int:
    """Return the sequence after the newest common checkpoint or `fallback`, else the first."""
    agreed = comparison.checkpoint if comparison.has_checkpoint and comparison.hub_agrees else 0
    return max(agreed, comparison.fallback) + 1


def confirmed(comparison: HubComparison) -> int:
    """Return the sequence up to which the hub's disk has everything, 0 if unknown.

    Checkpoints are agreed only when synced; the cursor counts once synced.
    """
    if _reason(comparison) is not None:
        return 0
    checkpoint = comparison.checkpoint if comparison.hub_agrees and comparison.has_checkpoint else 0
    return max(checkpoint, comparison.cursor if comparison.same_at_cursor and comparison.synced else 0)


def discarded(comparison: HubComparison, confirmed_before: int) -> tuple[int, int] | None:
    """Return the first and last sequence that left the stream before the hub had them, None if unknown.

    `confirmed_before` is the highest confirmed one of this epoch.
    """
    held = max(comparison.cursor, confirmed(comparison), confirmed_before, comparison.start - 1)
    return (held + 1, comparison.first - 1) if held and comparison.first > held + 1 else None


def _reason(comparison: HubComparison) -> EpochReason | None:
    if not comparison.has_checkpoint:
        return EpochReason.RESTORED
    if comparison.cursor > comparison.last:
        return EpochReason.RESTORED
    if comparison.same_at_cursor is False:
        return EpochReason.DIFFERENT
    if comparison.hub_agrees is False:
        return EpochReason.HUB_LOST
    return EpochReason.HUB_LOST if comparison.cursor_certain and _below_floor(comparison) else None


def _below_floor(comparison: HubComparison) -> bool:
    """Tell whether the hub has less than it acknowledged. An epoch's start and purges also lift the floor."""
    return comparison.cursor < comparison.floor and comparison.floor >= max(
        comparison.start, comparison.first
    )


def _lost(comparison: HubComparison, start: int) -> tuple[int, int] | None:
    """Return sequences lost at the hub and purged here."""
    return (start, comparison.first - 1) if start > 1 and comparison.first > start else None


def blocking_class(cls: str, priorities: Mapping[str, int], behind: Mapping[str, int], linked: float) -> str:
    """Return the class that `cls` waits for, "" for none. Smallest priority first; equal ones together.

    `behind` has unsent messages, `linked` seconds since link-up.
    """
    if linked >= TURN_SECONDS:
        return ""
    blocking = [
        name
        for name, priority in priorities.items()
        if priority < priorities[cls] and behind.get(name, 0) > CAUGHT_UP
    ]
    return min(blocking, key=lambda name: (priorities[name], name), default="")


def may_repair_at(consumer: ConsumerInfo | None, due: NewEpoch | None, domain: float, own: float) -> float:
    """Return the earliest time of a new epoch, by the limits of the domain and of the class.

    A restarted server lost the consumers of all classes, and a stuck hub takes nothing of several classes:
    such classes do not wait for each other.
    """
    return own if consumer is None or (due is not None and due.reason is EpochReason.STALLED) else domain


class LinkMemory(Struct, frozen=True):
    """State between decisions."""

    started_at: float = 0.0
    """First look."""
    verified: tuple[str, str] = ("", "")
    """Link and epoch found in agreement."""
    due: NewEpoch | None = None
    """The due repair."""
    due_since: float = 0.0
    progress: tuple[int, int, int] = (0, 0, 0)
    """Delivered, ack floor, hub cursor."""
    progress_at: float = 0.0
    """Its last change."""
    listened_at: float = 0.0
    """The hub's last listening."""
    confirmed: int = 0
    """Sequence up to which the hub has all of this epoch."""
    outstanding: int = 0
    """Last sequence sent by `outstanding_at`; the hub could take messages since and took none."""
    outstanding_at: float = 0.0
    stalls: int = 0
    """Useless epochs for that."""
