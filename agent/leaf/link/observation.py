"""What the link controller observes of one class at one moment: plain values on which alone it decides.

Times are monotonic seconds; sequences are those of the leaf's stream.

`lag: 0` is never believed: after a store was restored from a backup and data
flowed again, every cursor looks well though messages are missing for good; only a message that both sides
agreed on earlier (the checkpoint) still shows it. Before data has flowed, the cursors show it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from agent.jetstream import ConsumerInfo
from agent.leaf.link.guard import EpochReason, NewEpoch

CAUGHT_UP: Final = 64
"""Messages that a class may still have to send: one that flows all the time is never quite at the end."""
TURN_SECONDS: Final = 60.0
"""A class that has not caught up by then shares the link with the others: it may never catch up."""


class UplinkStatus(Struct, frozen=True):
    """The connection of the leaf's server to its hub."""

    up: bool
    since: float
    """Since when it is up or down."""
    key: str = ""
    """Identifies this connection; no other one has the same."""
    closed: str = ""
    """A sentence if the link is down on purpose."""
    cause: str = ""
    """Why it is down, where that is known."""


class HubComparison(Struct, frozen=True):
    """The hub's answer to one announcement, compared with what the leaf holds."""

    asked_at: float
    link_key: str
    """The connection over which the hub was asked."""
    epoch: str
    start: int
    """The consumer's start."""
    floor: int
    """The consumer's ack floor before the question, so that a healthy `cursor` is never below it."""
    first: int
    """The stream's first sequence after the answer."""
    last: int
    """The stream's last sequence after the answer."""
    cursor: int
    same_at_cursor: bool | None
    """Whether the leaf's message at the cursor is the hub's; None if no message is there or one has no id."""
    checkpoint: int
    """The leaf sequence of the agreed checkpoint, 0 without one."""
    has_checkpoint: bool
    """Whether the leaf still holds the message at the checkpoint."""
    hub_agrees: bool | None
    """Whether the hub holds the message at the checkpoint, None if it cannot know."""
    cursor_certain: bool
    """False if the hub says that its cursor may be too low."""
    hub_state: str
    """The hub's own word for the state."""
    fallback: int = 0
    """The leaf sequence up to which a hub that lacks messages still holds all; 0 if it does not say, or if
    the leaf holds another message there."""
    synced: bool = True
    """False if a power cut at the hub may still take what is at the cursor."""


class LinkObservation(Struct, frozen=True):
    """Everything about one class."""

    now: float
    epoch: str
    link: UplinkStatus
    consumer: ConsumerInfo | None
    """None if the link consumer is gone."""
    comparison: HubComparison | None = None
    refused: str | None = None
    """The hub's sentence if its newest answer refused this leaf, or this class."""
    silent_since: float | None = None
    """When the hub was first asked without an answer since its last one, None while it answers."""
    paused_until: float = 0.0
    """Until when a command has paused the link, 0 if none has."""
    blocking_class: str = ""
    """The class that goes before this one."""
    not_arriving: str = ""
    """Message that did not arrive over several links, "" if none."""
    may_repair_at: float = 0.0
    """When a new epoch may begin at the earliest."""


def difference(comparison: HubComparison) -> NewEpoch | None:
    """The new epoch that is needed, None if nothing contradicts that both sides hold the same. It starts
    after the last message on which both agree, or at the first one: duplicates are dropped at the table."""
    reason = _reason(comparison)
    if reason is None:
        return None
    start = agreed_start(comparison)
    return NewEpoch(reason, start, _lost(comparison, start) if reason is EpochReason.HUB_LOST else None)


def agreed_start(comparison: HubComparison) -> int:
    """Where an epoch begins that loses nothing: after the highest message of which both sides are known to
    hold the same.

    The message at the cursor proves that only while nothing has flowed since a store was restored: so long as
    no agreed checkpoint is disputed, or the hub's cursor is still below what it had acknowledged. A cursor
    below the checkpoint proves nothing, for the floor from which data flows again may be lower still.
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
    """The sequence after the newest checkpoint that both are known to hold, otherwise the first message."""
    agreed = comparison.checkpoint if comparison.has_checkpoint and comparison.hub_agrees else 0
    return max(agreed, comparison.fallback) + 1


def confirmed(comparison: HubComparison) -> int:
    """Up to which sequence the hub's disk is known to have everything of this leaf, 0 if nothing is known.

    Both sides agree on a checkpoint only when it is synced, so that a power cut cannot take it; the cursor
    counts as soon as it is, too.
    """
    if _reason(comparison) is not None:
        return 0
    checkpoint = comparison.checkpoint if comparison.hub_agrees and comparison.has_checkpoint else 0
    return max(checkpoint, comparison.cursor if comparison.same_at_cursor and comparison.synced else 0)


def discarded(comparison: HubComparison, confirmed_before: int) -> tuple[int, int] | None:
    """The first and last sequence that left the leaf's stream before the hub had them; `confirmed_before` is
    the highest sequence confirmed earlier in this epoch. None if nothing is known of what the hub holds."""
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
    """Whether the hub holds less than it has acknowledged. The floor of an epoch that has stored nothing yet
    is where the epoch begins, and a purge of the leaf's stream lifts it: neither is an acknowledgement."""
    return comparison.cursor < comparison.floor and comparison.floor >= max(
        comparison.start, comparison.first
    )


def _lost(comparison: HubComparison, start: int) -> tuple[int, int] | None:
    """The sequences that the hub lost and the leaf has purged since."""
    return (start, comparison.first - 1) if start > 1 and comparison.first > start else None


def blocking_class(cls: str, priorities: Mapping[str, int], behind: Mapping[str, int], linked: float) -> str:
    """The class that `cls` waits for, "" if it may flow. The smallest priority goes first; classes of one
    priority go together. `behind` is how many messages each still has to send, `linked` for how many seconds
    the link has been up."""
    if linked >= TURN_SECONDS:
        return ""
    blocking = [
        name
        for name, priority in priorities.items()
        if priority < priorities[cls] and behind.get(name, 0) > CAUGHT_UP
    ]
    return min(blocking, key=lambda name: (priorities[name], name), default="")


def may_repair_at(consumer: ConsumerInfo | None, due: NewEpoch | None, domain: float, own: float) -> float:
    """When a class may begin a new epoch: `domain` is when the domain may, `own` when the class itself may. A
    restarted server has forgotten the consumers of all classes, and a hub's server that takes nothing of one
    class often takes nothing of others: then none waits for another."""
    return own if consumer is None or (due is not None and due.reason is EpochReason.STALLED) else domain


class LinkMemory(Struct, frozen=True):
    """What one decision leaves for the next one."""

    started_at: float = 0.0
    """When the controller first looked."""
    verified: tuple[str, str] = ("", "")
    """The link and the epoch on which both sides were found to agree."""
    due: NewEpoch | None = None
    """The repair that is due."""
    due_since: float = 0.0
    progress: tuple[int, int, int] = (0, 0, 0)
    """The sequences delivered, of the ack floor and of the hub's cursor."""
    progress_at: float = 0.0
    """When one of them last moved."""
    listened_at: float = 0.0
    """When the hub last listened."""
    confirmed: int = 0
    """Up to where the hub holds all of this epoch."""
    outstanding: int = 0
    """Up to where the hub had been sent messages at `outstanding_at`; since then it could take them and has
    taken none."""
    outstanding_at: float = 0.0
    stalls: int = 0
    """How many epochs were begun for that and changed nothing."""
