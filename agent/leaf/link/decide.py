"""What the link keeper does about what it has seen. Pure: no clock, no connection; the same observations give
the same decision.

The order of a repair was measured on nats-server 2.15.1: pause the old consumer, wait until nothing of it is
in flight, compare, create the new one (0 messages lost, 0 doubled; without the pause up to 1,900 doubled).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    ConsumerStatus,
    HubComparison,
    LinkObservation,
    agreed_start,
    checkpoint_start,
    confirmed,
    difference,
    discarded,
)
from agent.leaf.link.states import LinkState

PAUSE: Final = 30.0
"""Seconds for which the consumer is paused at a time, so that a link which loses its agent is not paused for
ever."""
RENEW_BELOW: Final = 20.0
TOO_LONG: Final = 40.0
"""The server counts a pause by the wall clock: one that is longer than any that was asked for stems from a
clock that was set back, or from somebody else."""
ANSWER_WITHIN: Final = 5.0
"""Seconds after which data flows unverified, for a hub without its registrar must not stop the flow."""
DRAIN_WITHIN: Final = 5.0
REPAIR_EVERY: Final = 30.0
UNHEARD_AFTER: Final = 10.0
"""Longer than the hub's server needs to ask for a stream again when it is left alone (5.4 to 7.4 s)."""
STUCK_AFTER: Final = 20.0
MOST_PATIENT: Final = 5
"""How many times the patience with a stall is doubled at most, by one for each epoch that did not help."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the link consumer for so many seconds from now."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Let the link consumer flow."""


@dataclass(frozen=True, slots=True)
class AnnounceNow:
    """Announce at once."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Begin a new epoch."""

    epoch: NewEpoch


Action = Pause | Resume | AnnounceNow | Repair


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """What the decision before leaves for the next one: the link and epoch on which both sides were found to
    agree, the repair that is due and since when, when the flow last moved and when the hub last listened.
    `began` is when the keeper first looked, `confirmed` up to where the hub holds all of this epoch; what
    `moved` are the sequences delivered, of the floor and of the hub's cursor. `owed` is up to where the hub
    had been sent messages at `owed_at`, since when it could take them and has taken none; `stalls` are the
    epochs that were begun for that and changed nothing."""

    began: float = 0.0
    verified: tuple[str, str] = ("", "")
    due: NewEpoch | None = None
    due_since: float = 0.0
    moved: tuple[int, int, int] = (0, 0, 0)
    moved_at: float = 0.0
    heard_at: float = 0.0
    confirmed: int = 0
    owed: int = 0
    owed_at: float = 0.0
    stalls: int = 0


@dataclass(frozen=True, slots=True)
class LinkDecision:
    """The state, what its sentence says in this case, what to do, and what to remember."""

    state: LinkState
    memory: LinkMemory
    actions: tuple[Action, ...] = ()
    detail: str = ""


def decide(memory: LinkMemory, seen: LinkObservation) -> LinkDecision:
    """What to do now."""
    if memory.began == 0.0:
        memory = replace(memory, began=seen.now, moved_at=seen.now, heard_at=seen.now)
    comparison = _fresh(seen)
    stalled = memory.due is not None and memory.due.why is EpochReason.STALLED
    if stalled and memory.verified != (seen.link.key, seen.epoch):
        # Over another link the hub's server asks anew for what it lacks.
        memory = replace(memory, due=None)
    if not seen.link.up:
        state = LinkState.CLOSED if seen.link.closed else LinkState.DOWN
        return LinkDecision(state, memory, _keep_paused(seen.consumer), seen.link.closed)
    if comparison is not None and memory.due is None:
        due = difference(comparison)
        if due is not None:
            memory = replace(memory, due=due, due_since=seen.now)
    if seen.consumer is None and memory.due is None:
        memory = replace(memory, due=NewEpoch(EpochReason.CONSUMER_GONE, 1), due_since=seen.now)
    if memory.due is not None:
        return _repair(memory, memory.due, seen, comparison)
    if memory.verified != (seen.link.key, seen.epoch):
        if comparison is None or seen.refused is not None:
            return _unverified(memory, seen)
        memory = replace(
            memory, verified=(seen.link.key, seen.epoch), moved_at=seen.now, heard_at=seen.now, owed=0
        )
    return _verified(memory, seen, comparison)


def _fresh(seen: LinkObservation) -> HubComparison | None:
    """The newest comparison, where it was made over this link and of this epoch."""
    one = seen.comparison
    if one is None or one.epoch != seen.epoch or one.link_key != seen.link.key:
        return None
    return one if one.asked >= seen.link.since else None


def _keep_paused(consumer: ConsumerStatus | None) -> tuple[Action, ...]:
    if consumer is None:
        return ()
    if RENEW_BELOW <= consumer.paused_for <= TOO_LONG:
        return ()
    return (Pause(PAUSE),)


def _resume(consumer: ConsumerStatus | None) -> tuple[Action, ...]:
    return (Resume(),) if consumer is not None and consumer.paused_for > 0 else ()


def _repair(
    memory: LinkMemory, due: NewEpoch, seen: LinkObservation, comparison: HubComparison | None
) -> LinkDecision:
    paused = _keep_paused(seen.consumer)
    if seen.now < seen.may_repair_at:
        # The hub is asked when the repair may begin, and has its whole time to answer then.
        memory = replace(memory, due_since=seen.now)
        return LinkDecision(LinkState.POSTPONED, memory, paused, due.sentence())
    waited = seen.now - memory.due_since
    drained = seen.consumer is None or not seen.consumer.in_flight or waited > DRAIN_WITHIN
    if paused or not drained:
        return LinkDecision(LinkState.REPAIRING, memory, paused, due.sentence())
    # What was compared before the pause may be a step behind what flowed meanwhile.
    asked_since = comparison is not None and comparison.asked > memory.due_since
    patience = ANSWER_WITHIN if seen.consumer is None else DRAIN_WITHIN + ANSWER_WITHIN
    if not asked_since and waited < patience:
        return LinkDecision(LinkState.REPAIRING, memory, (AnnounceNow(),), due.sentence())
    final = _final(memory, due, seen, comparison)
    if final is None:
        memory = replace(memory, due=None)
        return LinkDecision(LinkState.COMPARING, memory, _resume(seen.consumer))
    # The new epoch is compared anew; what was confirmed of the old one says nothing of it.
    stalls = memory.stalls + 1 if final.why is EpochReason.STALLED else 0
    memory = LinkMemory(began=memory.began, moved_at=seen.now, heard_at=seen.now, stalls=stalls)
    return LinkDecision(LinkState.REPAIRING, memory, (Repair(final),), final.sentence())


def _final(
    memory: LinkMemory, due: NewEpoch, seen: LinkObservation, comparison: HubComparison | None
) -> NewEpoch | None:
    """The repair as the newest comparison shows it; None where nothing is wrong after all."""
    if due.why is EpochReason.STALLED and (comparison is None or difference(comparison) is None):
        # A consumer that is paused sends heartbeats, by which the hub's server may have seen it itself.
        if comparison is None or comparison.asked <= memory.due_since or comparison.cursor >= memory.owed:
            return None
        return NewEpoch(due.why, agreed_start(comparison))
    if comparison is None:
        one = seen.comparison
        same_epoch = one is not None and one.epoch == seen.epoch
        start = checkpoint_start(one) if one is not None and same_epoch else due.start
        return NewEpoch(due.why, start, due.gone)
    different = difference(comparison)
    if different is None and due.why is EpochReason.CONSUMER_GONE:
        return NewEpoch(due.why, agreed_start(comparison)) if seen.consumer is None else None
    return different


def _unverified(memory: LinkMemory, seen: LinkObservation) -> LinkDecision:
    since = max(seen.link.since, memory.began)
    waited = seen.now - since
    state, detail = LinkState.COMPARING, ""
    if seen.refused is not None:
        state, detail = LinkState.REFUSED, seen.refused
    elif waited > ANSWER_WITHIN:
        state = LinkState.UNVERIFIED
    if waited > ANSWER_WITHIN:
        return LinkDecision(state, memory, (*_held_or_flowing(seen), AnnounceNow()), detail)
    # A consumer that already flows is left to: pausing it now would not undo what has flowed.
    paused = seen.consumer is not None and seen.consumer.paused_for > 0
    keep = _keep_paused(seen.consumer) if paused else ()
    return LinkDecision(state, memory, (*keep, AnnounceNow()), detail)


def _held_or_flowing(seen: LinkObservation) -> tuple[Action, ...]:
    if seen.held_until > seen.now or seen.blocking_class:
        return _keep_paused(seen.consumer)
    return _resume(seen.consumer)


def _verified(memory: LinkMemory, seen: LinkObservation, comparison: HubComparison | None) -> LinkDecision:
    if comparison is not None:
        memory = replace(memory, confirmed=max(memory.confirmed, confirmed(comparison)))
    if seen.held_until > seen.now:
        return LinkDecision(LinkState.HELD, memory, _keep_paused(seen.consumer))
    if seen.blocking_class:
        actions = _keep_paused(seen.consumer)
        return LinkDecision(LinkState.IN_TURN, memory, actions, seen.blocking_class)
    memory = _noting_flow(memory, seen, comparison)
    if comparison is not None and _stalled(memory, comparison):
        due = NewEpoch(EpochReason.STALLED, agreed_start(comparison))
        return _repair(replace(memory, due=due, due_since=seen.now), due, seen, comparison)
    state, detail = _flow(memory, seen, comparison)
    return LinkDecision(state, memory, _resume(seen.consumer), detail)


def _noting_flow(memory: LinkMemory, seen: LinkObservation, comparison: HubComparison | None) -> LinkMemory:
    """What has moved since the look before, and what the hub owes."""
    consumer = seen.consumer
    if consumer is None:
        return memory
    if consumer.bound:
        memory = replace(memory, heard_at=seen.now)
    cursor = comparison.cursor if comparison else 0
    place = (consumer.delivered, consumer.floor, cursor)
    paused, idle = consumer.paused_for > 0, not consumer.pending and not consumer.in_flight
    no_room = comparison is not None and comparison.word in ("full", "capped")
    taken = place[1:] != memory.moved[1:]
    if memory.owed > 0 and cursor > memory.moved[2]:
        memory = replace(memory, stalls=0)
    if taken or cursor >= memory.owed or not consumer.in_flight or paused or not _able(seen, comparison):
        memory = replace(memory, owed=consumer.delivered, owed_at=seen.now)
    if place != memory.moved or idle or paused or no_room:
        memory = replace(memory, moved=place, moved_at=seen.now)
    return memory


def _able(seen: LinkObservation, comparison: HubComparison | None) -> bool:
    """Whether nothing is known that keeps the hub from taking what it is sent. A source that its server does
    not hear is the registrar's to add again."""
    bound = seen.consumer is not None and seen.consumer.bound
    well = comparison is not None and comparison.certain and comparison.word == "flowing"
    return bound and well and seen.refused is None


def _stalled(memory: LinkMemory, comparison: HubComparison) -> bool:
    """Whether the hub's server has what it was sent and takes nothing of it.

    Seen on nats-server 2.15.1 after sources had been added again and again: the hub's server dropped every
    message, and looks only at a heartbeat, which no leaf sends that is never idle. What was sent before a
    question over the same link stands before it, so an answer tells that it has arrived, however slow the
    link is.
    """
    patience = STUCK_AFTER * 2 ** min(memory.stalls, MOST_PATIENT)
    return memory.owed > comparison.cursor and comparison.asked > memory.owed_at + patience


def _flow(
    memory: LinkMemory, seen: LinkObservation, comparison: HubComparison | None
) -> tuple[LinkState, str]:
    """The state of a link that is up, compared and not paused."""
    if seen.refused is not None:
        return LinkState.REFUSED, seen.refused
    word = comparison.word if comparison is not None else ""
    if word == "contested":
        return LinkState.CONTESTED, ""
    if word == "full":
        return LinkState.FULL, ""
    if word == "capped":
        return LinkState.CAPPED, ""
    if seen.consumer is not None and seen.now - memory.heard_at > UNHEARD_AFTER:
        return LinkState.UNHEARD, ""
    if seen.silent_since is not None and seen.now - seen.silent_since > ANSWER_WITHIN:
        return LinkState.UNVERIFIED, ""
    if _waits(seen.consumer) and seen.now - memory.moved_at > STUCK_AFTER:
        return LinkState.STUCK, ""
    if comparison is not None and (gone := discarded(comparison, memory.confirmed)) is not None:
        return LinkState.DISCARDED, f"{gone[0]} to {gone[1]}"
    return LinkState.FLOWING, ""


def _waits(consumer: ConsumerStatus | None) -> bool:
    """Whether messages are under way and more wait behind them."""
    return consumer is not None and consumer.in_flight > 0 and consumer.pending > 0
