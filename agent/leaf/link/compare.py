"""Whether leaf and hub hold the same, and where they last did. Pure.

`lag: 0` is never believed. Seen on nats-server 2.15.1: after a store was put back and data flowed again,
every cursor looks well though messages are missing for good; only a place that both sides agreed on earlier
(the checkpoint) still shows it. Before data has flowed, the cursors tell it at once.
"""

from __future__ import annotations

from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import HubComparison


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
