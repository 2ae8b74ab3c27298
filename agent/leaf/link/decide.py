"""Decides on a link observation. Pure.

Repair order, as measured: pause the old consumer, wait for messages in flight, compare, create the new one.
This loses and doubles nothing; without pause up to 1,900 were doubled.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from agent.jetstream import ConsumerInfo
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    HubComparison,
    LinkMemory,
    LinkObservation,
    agreed_start,
    checkpoint_start,
    confirmed,
    difference,
    discarded,
)
from agent.leaf.link.status import LinkState

PAUSE: Final = 30.0
"""Seconds per pause, short in case the agent dies."""
RENEW_BELOW: Final = 20.0
TOO_LONG: Final = 40.0
"""Longer than any own pause: from a clock set back, or another client."""
ANSWER_WITHIN: Final = 5.0
"""Seconds before data flows unverified without registrar."""
DRAIN_WITHIN: Final = 5.0
REPAIR_EVERY: Final = 30.0
UNHEARD_AFTER: Final = 10.0
"""Longer than a hub server's own retry (5.4 to 7.4 s)."""
STUCK_AFTER: Final = 20.0
MOST_PATIENT: Final = 5
"""Most doublings of `STUCK_AFTER`, one per useless epoch."""


class Pause(Struct, frozen=True):
    """Pause the consumer for seconds."""

    seconds: float


class Resume(Struct, frozen=True):
    """Resume the consumer."""


class AnnounceNow(Struct, frozen=True):
    """Announce at once."""


class Repair(Struct, frozen=True):
    """Begin a new epoch."""

    epoch: NewEpoch


Action = Pause | Resume | AnnounceNow | Repair


class LinkDecision(Struct, frozen=True):
    """The state, action and memory."""

    state: LinkState
    memory: LinkMemory
    actions: tuple[Action, ...] = ()
    detail: str = ""
    """Completes the sentence."""


def decide(memory: LinkMemory, observation: LinkObservation) -> LinkDecision:
    """Return the decision on an observation."""
    if memory.started_at == 0.0:
        memory = replace(
            memory, started_at=observation.now, progress_at=observation.now, listened_at=observation.now
        )
    comparison, over = _fresh(observation), (observation.link.key, observation.epoch)
    stalled = memory.due is not None and memory.due.reason is EpochReason.STALLED
    if stalled and memory.verified != over:
        # Over another link the hub's server requests again what it lacks.
        memory = replace(memory, due=None)
    if not observation.link.up:
        state = LinkState.CLOSED if observation.link.closed else LinkState.DOWN
        cause = f" ({observation.link.cause})" if observation.link.cause else ""
        detail = observation.link.closed or cause
        return LinkDecision(state, memory, _keep_paused(observation.consumer), detail)
    if comparison is not None and memory.due is None:
        due = difference(comparison)
        if due is not None:
            memory = replace(memory, due=due, due_since=observation.now)
    if observation.consumer is None and memory.due is None:
        memory = replace(memory, due=NewEpoch(EpochReason.CONSUMER_GONE, 1), due_since=observation.now)
    if memory.due is not None:
        return _repair(memory, memory.due, observation, comparison)
    if memory.verified != over:
        if comparison is None or observation.refused is not None:
            return _unverified(memory, observation)
        memory = replace(
            memory, verified=over, progress_at=observation.now, listened_at=observation.now, outstanding=0
        )
    return _verified(memory, observation, comparison)


def _fresh(observation: LinkObservation) -> HubComparison | None:
    """Return the newest comparison of this link and epoch."""
    newest = observation.comparison
    if newest is None or newest.epoch != observation.epoch or newest.link_key != observation.link.key:
        return None
    return newest if newest.asked_at >= observation.link.since else None


def _keep_paused(consumer: ConsumerInfo | None) -> tuple[Action, ...]:
    if consumer is None or RENEW_BELOW <= consumer.pause_remaining <= TOO_LONG:
        return ()
    return (Pause(PAUSE),)


def _resume(consumer: ConsumerInfo | None) -> tuple[Action, ...]:
    return (Resume(),) if consumer is not None and consumer.pause_remaining > 0 else ()


def _repair(
    memory: LinkMemory, due: NewEpoch, observation: LinkObservation, comparison: HubComparison | None
) -> LinkDecision:
    paused = _keep_paused(observation.consumer)
    if observation.now < observation.may_repair_at:
        # The hub is asked when the repair may begin, and has its whole time to answer then.
        memory = replace(memory, due_since=observation.now)
        return LinkDecision(LinkState.POSTPONED, memory, paused, due.sentence())
    waited = observation.now - memory.due_since
    drained = observation.consumer is None or not observation.consumer.ack_pending or waited > DRAIN_WITHIN
    if paused or not drained:
        return LinkDecision(LinkState.REPAIRING, memory, paused, due.sentence())
    # What was compared before the pause may be a step behind what flowed meanwhile.
    asked_since = comparison is not None and comparison.asked_at > memory.due_since
    patience = ANSWER_WITHIN if observation.consumer is None else DRAIN_WITHIN + ANSWER_WITHIN
    # Over a link that has just come up the hub could not answer yet.
    waited = min(waited, observation.now - observation.link.since)
    if not asked_since and waited < patience:
        return LinkDecision(LinkState.REPAIRING, memory, (AnnounceNow(),), due.sentence())
    final = _final(memory, due, observation, comparison)
    if final is None:
        memory = replace(memory, due=None)
        return LinkDecision(LinkState.COMPARING, memory, _resume(observation.consumer))
    # The new epoch is compared again; what was confirmed of the old one does not hold for it.
    stalls = memory.stalls + 1 if final.reason is EpochReason.STALLED else 0
    memory = LinkMemory(
        started_at=memory.started_at, progress_at=observation.now, listened_at=observation.now, stalls=stalls
    )
    return LinkDecision(LinkState.REPAIRING, memory, (Repair(final),), final.sentence())


def _final(
    memory: LinkMemory, due: NewEpoch, observation: LinkObservation, comparison: HubComparison | None
) -> NewEpoch | None:
    """Return the repair by the newest comparison, None if needless."""
    newer = comparison if comparison is not None and comparison.asked_at > memory.due_since else None
    if due.reason is EpochReason.STALLED and (comparison is None or difference(comparison) is None):
        # A paused consumer sends heartbeats, which may have shown it to the hub's server already.
        if newer is None or newer.cursor >= memory.outstanding:
            return None
        return NewEpoch(due.reason, agreed_start(newer))
    if comparison is None:
        older = observation.comparison
        is_current = older is not None and older.epoch == observation.epoch
        start = checkpoint_start(older) if older is not None and is_current else due.start
        return NewEpoch(due.reason, start, due.lost)
    different = difference(comparison)
    if different is None and due.reason is EpochReason.CONSUMER_GONE:
        return NewEpoch(due.reason, agreed_start(comparison)) if observation.consumer is None else None
    return different


def _unverified(memory: LinkMemory, observation: LinkObservation) -> LinkDecision:
    waited = observation.now - max(observation.link.since, memory.started_at)
    state, detail = LinkState.COMPARING, ""
    asked: tuple[Action, ...] = (AnnounceNow(),)
    if observation.refused is not None:
        # A hub that has refused is asked again at the next turn.
        state, detail, asked = LinkState.REFUSED, observation.refused, ()
    elif waited > ANSWER_WITHIN:
        state = LinkState.UNVERIFIED
    if waited > ANSWER_WITHIN:
        return LinkDecision(state, memory, (*_held_or_flowing(observation), *asked), detail)
    # A consumer that already flows goes on: a pause now would not undo what has flowed.
    paused = observation.consumer is not None and observation.consumer.pause_remaining > 0
    keep = _keep_paused(observation.consumer) if paused else ()
    return LinkDecision(state, memory, (*keep, *asked), detail)


def _held_or_flowing(observation: LinkObservation) -> tuple[Action, ...]:
    if observation.paused_until > observation.now or observation.blocking_class:
        return _keep_paused(observation.consumer)
    return _resume(observation.consumer)


def _verified(
    memory: LinkMemory, observation: LinkObservation, comparison: HubComparison | None
) -> LinkDecision:
    if comparison is not None:
        memory = replace(memory, confirmed=max(memory.confirmed, confirmed(comparison)))
    if observation.paused_until > observation.now:
        return LinkDecision(LinkState.PAUSED, memory, _keep_paused(observation.consumer))
    if observation.blocking_class:
        actions = _keep_paused(observation.consumer)
        return LinkDecision(LinkState.IN_TURN, memory, actions, observation.blocking_class)
    memory = _noting_flow(memory, observation, comparison)
    if comparison is not None and _stalled(memory, comparison):
        due = NewEpoch(EpochReason.STALLED, agreed_start(comparison))
        return _repair(replace(memory, due=due, due_since=observation.now), due, observation, comparison)
    state, detail = _flow(memory, observation, comparison)
    return LinkDecision(state, memory, _resume(observation.consumer), detail)


def _noting_flow(
    memory: LinkMemory, observation: LinkObservation, comparison: HubComparison | None
) -> LinkMemory:
    """Note movement and what the hub has not taken."""
    consumer = observation.consumer
    if consumer is None:
        return memory
    hub_state = comparison.hub_state if comparison else ""
    if consumer.push_bound or hub_state == "resting":
        memory = replace(memory, listened_at=observation.now)
    cursor = comparison.cursor if comparison else 0
    place = (consumer.delivered, consumer.ack_floor, cursor)
    paused, idle = consumer.pause_remaining > 0, not consumer.pending and not consumer.ack_pending
    no_room = hub_state in ("full", "capped", "resting")
    taken = place[1:] != memory.progress[1:]
    if memory.outstanding > 0 and cursor > memory.progress[2]:
        memory = replace(memory, stalls=0)
    owes = consumer.ack_pending > 0 and cursor < memory.outstanding
    if taken or paused or not owes or not _able(observation, comparison):
        memory = replace(memory, outstanding=consumer.delivered, outstanding_at=observation.now)
    if place != memory.progress or idle or paused or no_room:
        memory = replace(memory, progress=place, progress_at=observation.now)
    return memory


def _able(observation: LinkObservation, comparison: HubComparison | None) -> bool:
    """Tell whether the hub should take messages. The registrar readds unheard sources."""
    bound = observation.consumer is not None and observation.consumer.push_bound
    healthy = comparison is not None and comparison.cursor_certain and comparison.hub_state == "flowing"
    return bound and healthy and observation.refused is None


def _stalled(memory: LinkMemory, comparison: HubComparison) -> bool:
    """Tell whether the hub's server received messages and takes none.

    nats-server before 2.15.3 drops messages after crossed resets and checks only at heartbeats, which a busy
    leaf does not send (`processInboundSourceMsg` in server/stream.go). An answer proves that earlier messages
    arrived.
    """
    patience = STUCK_AFTER * 2 ** min(memory.stalls, MOST_PATIENT)
    return memory.outstanding > comparison.cursor and comparison.asked_at > memory.outstanding_at + patience


def _flow(
    memory: LinkMemory, observation: LinkObservation, comparison: HubComparison | None
) -> tuple[LinkState, str]:
    """Return the state of a compared, unpaused link."""
    if observation.refused is not None:
        return LinkState.REFUSED, observation.refused
    hub_state, consumer = comparison.hub_state if comparison is not None else "", observation.consumer
    if hub_state in ("contested", "full", "capped"):
        return LinkState(hub_state), ""
    if consumer is not None and observation.now - memory.listened_at > UNHEARD_AFTER:
        return LinkState.UNHEARD, ""
    if observation.silent_since is not None and observation.now - observation.silent_since > ANSWER_WITHIN:
        return LinkState.UNVERIFIED, ""
    waits = consumer is not None and consumer.ack_pending > 0 and consumer.pending > 0
    if waits and observation.now - memory.progress_at > STUCK_AFTER:
        return LinkState.STUCK, ""
    if comparison is not None and (lost := discarded(comparison, memory.confirmed)) is not None:
        return LinkState.DISCARDED, f"{lost[0]} to {lost[1]}"
    if observation.not_arriving:
        return LinkState.NOT_ARRIVING, observation.not_arriving
    return LinkState.FLOWING, ""
