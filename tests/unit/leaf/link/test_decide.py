"""What the link controller decides: the table of its cases, and courses of several steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from agent.jetstream import ConsumerInfo
from agent.leaf.link.decide import (
    ANSWER_WITHIN,
    DRAIN_WITHIN,
    PAUSE,
    STUCK_AFTER,
    UNHEARD_AFTER,
    Action,
    AnnounceNow,
    LinkDecision,
    Pause,
    Repair,
    Resume,
    decide,
)
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    HubComparison,
    LinkMemory,
    LinkObservation,
    UplinkStatus,
)
from agent.leaf.link.status import ORDINARY, SENTENCES, LinkState, sentence, worst
from tests.unit.leaf.link.test_observation import WELL

NOW = 1000.0
UP = UplinkStatus(True, NOW - 1, "s/1")
DOWN = UplinkStatus(False, NOW - 1)
FLOWS = ConsumerInfo("hub-e", "", 210, 210, 200, 0, 0, 1, 0.0, True, {})
PAUSED = replace(FLOWS, pause_remaining=25.0)
SAID = replace(WELL, asked_at=NOW - 0.5, link_key="s/1", epoch="e")
LOST = replace(SAID, cursor=100, hub_agrees=False)
SEEN = LinkObservation(now=NOW, epoch="e", link=UP, consumer=FLOWS, comparison=SAID)
NEW = LinkMemory()
KNOWN = LinkMemory(
    started_at=NOW - 60, verified=("s/1", "e"), progress_at=NOW - 1, listened_at=NOW - 1, confirmed=205
)
LATE = UplinkStatus(True, NOW - ANSWER_WITHIN - 1, "s/1")
HUB_LOST = NewEpoch(EpochReason.HUB_LOST, 101)
GONE = NewEpoch(EpochReason.CONSUMER_GONE, 206)


@dataclass(frozen=True)
class Case:
    """What is remembered and seen, and what follows."""

    name: str
    memory: LinkMemory
    seen: LinkObservation
    state: LinkState
    actions: tuple[Action, ...] = ()


def seen(
    *,
    link: UplinkStatus = UP,
    consumer: ConsumerInfo | None = FLOWS,
    comparison: HubComparison | None = SAID,
) -> LinkObservation:
    """`SEEN` with these parts."""
    return replace(SEEN, link=link, consumer=consumer, comparison=comparison)


def said(hub_state: str) -> LinkObservation:
    """The hub answers with this word of state."""
    return seen(comparison=replace(SAID, hub_state=hub_state))


CASES = [
    Case("the link is lost", KNOWN, seen(link=DOWN), LinkState.DOWN, (Pause(PAUSE),)),
    Case("it stays lost", KNOWN, seen(link=DOWN, consumer=PAUSED), LinkState.DOWN),
    Case(
        "the pause runs out",
        KNOWN,
        seen(link=DOWN, consumer=replace(PAUSED, pause_remaining=12.0)),
        LinkState.DOWN,
        (Pause(PAUSE),),
    ),
    Case(
        "the clock was set forward and the pause is over",
        KNOWN,
        seen(link=DOWN, consumer=FLOWS),
        LinkState.DOWN,
        (Pause(PAUSE),),
    ),
    Case(
        "the clock was set back and the pause is an hour long",
        KNOWN,
        seen(link=DOWN, consumer=replace(PAUSED, pause_remaining=3600.0)),
        LinkState.DOWN,
        (Pause(PAUSE),),
    ),
    Case("lost, without a consumer", KNOWN, seen(link=DOWN, consumer=None), LinkState.DOWN),
    Case(
        "closed on purpose",
        KNOWN,
        seen(link=replace(DOWN, closed="closed until 22:00"), consumer=PAUSED),
        LinkState.CLOSED,
    ),
    Case(
        "the link is back and nobody has answered yet",
        KNOWN,
        seen(link=replace(UP, key="s/2"), consumer=PAUSED),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "an answer from before the link was lost does not count",
        KNOWN,
        seen(link=replace(UP, key="s/2"), consumer=PAUSED),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "an answer from before the link came up does not count",
        NEW,
        seen(consumer=PAUSED, comparison=replace(SAID, asked_at=NOW - 2)),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "an answer about the epoch before does not count",
        NEW,
        seen(consumer=PAUSED, comparison=replace(SAID, epoch="d")),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "both sides agreed on the epoch before, over the same link",
        KNOWN,
        replace(seen(consumer=PAUSED, comparison=None), epoch="f"),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "the agent starts on a link that was up long before",
        NEW,
        seen(link=LATE, consumer=PAUSED, comparison=None),
        LinkState.COMPARING,
        (AnnounceNow(),),
    ),
    Case(
        "the comparison takes long and the pause runs out",
        NEW,
        seen(consumer=replace(PAUSED, pause_remaining=5.0), comparison=None),
        LinkState.COMPARING,
        (Pause(PAUSE), AnnounceNow()),
    ),
    Case("back, and both agree", NEW, seen(consumer=PAUSED), LinkState.FLOWING, (Resume(),)),
    Case("the agent starts on a link that flows", NEW, SEEN, LinkState.FLOWING),
    Case(
        "the registrar does not answer in time",
        replace(NEW, started_at=NOW - 60, progress_at=NOW),
        seen(link=LATE, consumer=PAUSED, comparison=None),
        LinkState.UNVERIFIED,
        (Resume(), AnnounceNow()),
    ),
    Case(
        "the hub refuses this leaf",
        NEW,
        replace(seen(consumer=PAUSED, comparison=None), refused="no such domain"),
        LinkState.REFUSED,
        (),
    ),
    Case(
        "the hub refuses this leaf after it has answered",
        NEW,
        replace(seen(consumer=PAUSED), refused="another machine has this domain"),
        LinkState.REFUSED,
        (),
    ),
    Case(
        "the registrar does not answer and a person wants the link paused",
        replace(NEW, started_at=NOW - 60, progress_at=NOW),
        replace(seen(link=LATE, consumer=PAUSED, comparison=None), paused_until=NOW + 100),
        LinkState.UNVERIFIED,
        (AnnounceNow(),),
    ),
    Case(
        "the registrar does not answer and another class goes first",
        replace(NEW, started_at=NOW - 60, progress_at=NOW),
        replace(seen(link=LATE, consumer=PAUSED, comparison=None), blocking_class="critical"),
        LinkState.UNVERIFIED,
        (AnnounceNow(),),
    ),
    Case(
        "somebody has paused the consumer and forgotten it",
        KNOWN,
        seen(consumer=PAUSED),
        LinkState.FLOWING,
        (Resume(),),
    ),
    Case(
        "a person wants it paused",
        KNOWN,
        replace(SEEN, paused_until=NOW + 100),
        LinkState.PAUSED,
        (Pause(PAUSE),),
    ),
    Case(
        "a person's pause is over",
        KNOWN,
        replace(seen(consumer=PAUSED), paused_until=NOW - 1),
        LinkState.FLOWING,
        (Resume(),),
    ),
    Case(
        "another class goes first",
        KNOWN,
        replace(SEEN, blocking_class="critical"),
        LinkState.IN_TURN,
        (Pause(PAUSE),),
    ),
    Case(
        "the hub lost messages: first the pause",
        KNOWN,
        seen(comparison=LOST),
        LinkState.REPAIRING,
        (Pause(PAUSE),),
    ),
    Case(
        "then what is in flight",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - 1),
        seen(consumer=replace(PAUSED, ack_pending=3), comparison=LOST),
        LinkState.REPAIRING,
    ),
    Case(
        "then another look, for something may have flowed meanwhile",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - 0.1),
        seen(consumer=PAUSED, comparison=LOST),
        LinkState.REPAIRING,
        (AnnounceNow(),),
    ),
    Case(
        "then the new epoch",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - 1),
        seen(consumer=PAUSED, comparison=LOST),
        LinkState.REPAIRING,
        (Repair(HUB_LOST),),
    ),
    Case(
        "what is in flight never comes back",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - DRAIN_WITHIN - 0.1),
        seen(consumer=replace(PAUSED, ack_pending=3), comparison=LOST),
        LinkState.REPAIRING,
        (Repair(HUB_LOST),),
    ),
    Case(
        "it was nothing after all",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - 1),
        seen(consumer=PAUSED),
        LinkState.COMPARING,
        (Resume(),),
    ),
    Case(
        "the last epoch is less than 30 s old",
        replace(KNOWN, due=HUB_LOST, due_since=NOW - 1),
        replace(seen(consumer=PAUSED, comparison=LOST), may_repair_at=NOW + 10),
        LinkState.POSTPONED,
    ),
    Case("the consumer is gone", KNOWN, seen(consumer=None), LinkState.REPAIRING, (AnnounceNow(),)),
    Case(
        "the consumer is gone and the hub has said where it is",
        replace(KNOWN, due=GONE, due_since=NOW - 1),
        seen(consumer=None),
        LinkState.REPAIRING,
        (Repair(GONE),),
    ),
    Case(
        "the consumer is gone and the hub says nothing",
        replace(KNOWN, due=GONE, due_since=NOW - ANSWER_WITHIN),
        seen(link=LATE, consumer=None, comparison=replace(SAID, asked_at=NOW - 20, link_key="s/0")),
        LinkState.REPAIRING,
        (Repair(NewEpoch(EpochReason.CONSUMER_GONE, 151)),),
    ),
    Case(
        "the consumer is gone, the hub says nothing, and what it said was of the epoch before",
        replace(KNOWN, due=NewEpoch(EpochReason.CONSUMER_GONE, 1), due_since=NOW - ANSWER_WITHIN),
        seen(link=LATE, consumer=None, comparison=replace(SAID, epoch="d")),
        LinkState.REPAIRING,
        (Repair(NewEpoch(EpochReason.CONSUMER_GONE, 1)),),
    ),
    Case(
        "the consumer is gone, the link was lost before the hub could answer and came back a second ago",
        replace(KNOWN, due=NewEpoch(EpochReason.CONSUMER_GONE, 1), due_since=NOW - 60),
        seen(link=replace(UP, key="s/2"), consumer=None, comparison=None),
        LinkState.REPAIRING,
        (AnnounceNow(),),
    ),
    Case(
        "the consumer was gone for one look and is there again",
        replace(KNOWN, due=GONE, due_since=NOW - 1),
        seen(consumer=PAUSED),
        LinkState.COMPARING,
        (Resume(),),
    ),
    Case("the hub's stream is full", KNOWN, said("full"), LinkState.FULL),
    Case("the hub's cap is reached", KNOWN, said("capped"), LinkState.CAPPED),
    Case("another machine announces the domain", KNOWN, said("contested"), LinkState.CONTESTED),
    Case(
        "nobody listens",
        replace(KNOWN, listened_at=NOW - UNHEARD_AFTER - 1),
        seen(consumer=replace(FLOWS, push_bound=False)),
        LinkState.UNHEARD,
    ),
    Case(
        "nobody listens, for the hub has dropped the source of an idle class",
        replace(KNOWN, listened_at=NOW - UNHEARD_AFTER - 1),
        replace(said("resting"), consumer=replace(FLOWS, push_bound=False)),
        LinkState.FLOWING,
    ),
    Case(
        "acknowledgements do not come back",
        replace(KNOWN, progress=(1000, 0, 205), progress_at=NOW - STUCK_AFTER - 1),
        seen(consumer=replace(FLOWS, delivered=1000, ack_floor=0, ack_pending=1000, pending=500)),
        LinkState.STUCK,
    ),
    Case(
        "a pause is over in which nothing could move",
        replace(KNOWN, progress=(1000, 0, 205), progress_at=NOW - STUCK_AFTER - 1),
        seen(consumer=replace(PAUSED, delivered=1000, ack_floor=0, ack_pending=1000, pending=500)),
        LinkState.FLOWING,
        (Resume(),),
    ),
    Case(
        "the link is back, both agree, and the hub has not begun to listen yet",
        replace(KNOWN, verified=("s/0", "e"), listened_at=NOW - UNHEARD_AFTER - 1),
        seen(consumer=replace(FLOWS, push_bound=False)),
        LinkState.FLOWING,
    ),
    Case(
        "messages went before they were sent",
        KNOWN,
        seen(comparison=replace(SAID, first=209)),
        LinkState.DISCARDED,
    ),
    Case(
        "the registrar went away",
        KNOWN,
        replace(SEEN, silent_since=NOW - ANSWER_WITHIN - 1),
        LinkState.UNVERIFIED,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_controller_decides(case: Case) -> None:
    decision = decide(case.memory, case.seen)
    assert (decision.state, decision.actions) == (case.state, case.actions)


def after(decision: LinkDecision, seconds: float, what: LinkObservation) -> LinkDecision:
    """The next decision, so many seconds later."""
    return decide(decision.memory, replace(what, now=NOW + seconds))


def test_a_repair_is_compared_anew_in_its_own_epoch() -> None:
    ready = decide(replace(KNOWN, due=HUB_LOST, due_since=NOW - 1), seen(consumer=PAUSED, comparison=LOST))
    assert ready.actions == (Repair(HUB_LOST),)
    new = replace(SEEN, epoch="f", comparison=None)
    waiting = after(ready, 0.1, new)
    assert (waiting.state, waiting.actions) == (LinkState.COMPARING, (AnnounceNow(),))
    comparison = replace(
        SAID, epoch="f", asked_at=NOW + 0.2, start=101, floor=100, cursor=0, same_at_cursor=None
    )
    assert after(waiting, 0.3, replace(new, comparison=comparison)).state is LinkState.FLOWING


def test_what_was_confirmed_of_an_epoch_says_nothing_of_the_next_one() -> None:
    ready = decide(replace(KNOWN, due=HUB_LOST, due_since=NOW - 1), seen(consumer=PAUSED, comparison=LOST))
    assert ready.actions == (Repair(HUB_LOST),)
    empty = replace(
        SAID, epoch="f", asked_at=NOW, start=101, floor=100, cursor=0, same_at_cursor=None, checkpoint=0
    )
    purged = after(ready, 0.3, replace(SEEN, epoch="f", comparison=replace(empty, first=109)))
    assert (purged.state, purged.detail) == (LinkState.DISCARDED, "101 to 108")


def test_what_was_confirmed_stays_so_while_nobody_can_tell() -> None:
    unknown = replace(SAID, same_at_cursor=None, hub_agrees=None)
    assert decide(KNOWN, seen(comparison=unknown)).memory.confirmed == 205


def test_a_link_over_which_nothing_arrives_does_not_count_as_flowing() -> None:
    decision = decide(KNOWN, replace(SEEN, not_arriving="class normal, message 9"))
    assert (decision.state, decision.detail) == (LinkState.NOT_ARRIVING, "class normal, message 9")


def test_an_idle_link_is_never_stuck() -> None:
    decision = decide(KNOWN, SEEN)
    for minute in range(1, 10):
        decision = after(decision, 60.0 * minute, SEEN)
        assert decision.state is LinkState.FLOWING


SENT = replace(FLOWS, delivered=300, ack_floor=205, ack_pending=95)
"""The hub has not acknowledged what was sent last."""
TAKES_NOTHING = replace(SAID, cursor=205, floor=205, last=400)


def sent(
    after: float, *, asked_at: float, cursor: int = 205, consumer: ConsumerInfo = SENT
) -> LinkObservation:
    """So many seconds after `NOW` the newest answer, to a question of then, has this cursor."""
    comparison = replace(TAKES_NOTHING, asked_at=NOW + asked_at, cursor=cursor)
    return replace(SEEN, now=NOW + after, consumer=consumer, comparison=comparison)


def course(*steps: LinkObservation, memory: LinkMemory = KNOWN) -> list[LinkDecision]:
    """What is decided, step by step."""
    decisions = []
    for step in steps:
        decisions.append(decide(memory, step))
        memory = decisions[-1].memory
    return decisions


def test_a_hub_that_answers_and_takes_nothing_of_what_was_sent_gets_a_new_epoch_after_a_pause() -> None:
    more = replace(SENT, delivered=900, ack_pending=695)
    held = replace(more, pause_remaining=25.0)
    late = STUCK_AFTER + 2
    first, going, due, *_, asks, begins = course(
        sent(0, asked_at=-1),
        sent(STUCK_AFTER, asked_at=10, consumer=more),
        sent(late, asked_at=late - 1, consumer=more),
        sent(late + 1, asked_at=late - 1, consumer=held),
        sent(late + DRAIN_WITHIN + 1, asked_at=late - 1, consumer=held),
        sent(late + DRAIN_WITHIN + 2, asked_at=late + DRAIN_WITHIN + 1, consumer=held),
    )
    assert (first.state, going.state) == (LinkState.FLOWING, LinkState.FLOWING)
    assert (due.state, due.actions) == (LinkState.REPAIRING, (Pause(PAUSE),))
    assert asks.actions == (AnnounceNow(),)
    assert begins.actions == (Repair(NewEpoch(EpochReason.STALLED, 206)),)
    assert begins.memory.stalls == 1


def test_a_hub_that_takes_what_it_was_sent_once_the_consumer_pauses_keeps_its_epoch() -> None:
    late = STUCK_AFTER + 2
    held = replace(SENT, pause_remaining=25.0)
    *_, resumes = course(
        sent(0, asked_at=-1),
        sent(late, asked_at=late - 1),
        sent(late + 6, asked_at=late + 5, cursor=300, consumer=held),
    )
    assert (resumes.state, resumes.actions) == (LinkState.COMPARING, (Resume(),))


def test_a_slow_link_over_which_no_newer_answer_has_come_is_left_alone() -> None:
    steps = [sent(at, asked_at=STUCK_AFTER - 1) for at in range(0, 200, 10)]
    assert all(one.memory.due is None for one in course(*steps))


def test_a_hub_that_takes_what_it_was_sent_and_acknowledges_late_is_left_alone() -> None:
    steps = [
        sent(at, asked_at=at - 1, cursor=200 + at, consumer=replace(SENT, delivered=201 + at))
        for at in range(10, 200, 10)
    ]
    assert all(one.state is LinkState.FLOWING for one in course(*steps))


def test_a_link_that_is_idle_in_between_owes_nothing() -> None:
    idle = replace(SENT, ack_pending=0, ack_floor=300)
    steps = [sent(at, asked_at=at - 1, consumer=idle if at % 20 else SENT) for at in range(0, 200, 10)]
    assert all(one.memory.due is None for one in course(*steps))


@pytest.mark.parametrize("hub_state", ["full", "capped", "contested", "linking", "resting"])
def test_a_hub_that_says_why_it_takes_nothing_is_left_alone(hub_state: str) -> None:
    steps = [sent(at, asked_at=at - 1) for at in range(0, 200, 10)]
    said_so = [
        replace(one, comparison=replace(TAKES_NOTHING, asked_at=one.now - 1, hub_state=hub_state))
        for one in steps
    ]
    assert all(one.memory.due is None for one in course(*said_so))


def test_patience_with_a_stall_doubles_with_each_epoch_that_did_not_help() -> None:
    steps = [sent(at, asked_at=at - 1) for at in (0, STUCK_AFTER + 2, 2 * STUCK_AFTER, 2 * STUCK_AFTER + 2)]
    *early, late = course(*steps, memory=replace(KNOWN, stalls=1))
    assert [one.memory.due for one in early] == [None] * 3
    assert late.memory.due == NewEpoch(EpochReason.STALLED, 206)
    owing = replace(KNOWN, stalls=3, progress=(300, 205, 205), outstanding=300, outstanding_at=NOW - 1)
    progress = decide(owing, sent(0, asked_at=-1, cursor=250))
    assert progress.memory.stalls == 0, "the hub has taken something"


def cannot(why: str, step: LinkObservation) -> LinkObservation:
    """The same while the hub has a reason to take nothing."""
    assert step.consumer is not None
    assert step.comparison is not None
    match why:
        case "unbound":
            return replace(step, consumer=replace(step.consumer, push_bound=False))
        case "refused":
            return replace(step, refused="too many leaves")
        case "uncertain":
            return replace(step, comparison=replace(step.comparison, cursor_certain=False))
        case _:
            return replace(step, comparison=replace(step.comparison, hub_state=why))


@pytest.mark.parametrize("why", ["full", "capped", "contested", "linking", "unbound", "refused", "uncertain"])
def test_a_hub_that_had_a_reason_to_take_nothing_has_all_its_time_once_that_is_gone(why: str) -> None:
    away = [cannot(why, sent(at, asked_at=at - 1)) for at in range(100)]
    back = [sent(99 + at, asked_at=98 + at) for at in (1, 10, STUCK_AFTER)]
    late = sent(101 + STUCK_AFTER, asked_at=100 + STUCK_AFTER)
    *waits, due = course(*away, *back, late)
    assert [one.memory.due for one in waits] == [None] * len(waits)
    assert due.memory.due == NewEpoch(EpochReason.STALLED, 206)


@pytest.mark.parametrize("hub_state", ["full", "capped", "resting"])
def test_a_hub_that_had_no_room_is_not_said_to_be_stuck_once_it_has(hub_state: str) -> None:
    waits = replace(SENT, pending=100)
    away = [cannot(hub_state, sent(at, asked_at=at - 1, consumer=waits)) for at in range(100)]
    begins, stuck = course(
        *away,
        sent(100, asked_at=99, consumer=waits),
        # Nobody has answered since, so that it is not known to be stalled.
        sent(102 + STUCK_AFTER, asked_at=99, consumer=waits),
    )[-2:]
    assert (begins.state, stuck.state) == (LinkState.FLOWING, LinkState.STUCK)


STALLED = replace(
    KNOWN,
    due=NewEpoch(EpochReason.STALLED, 206),
    due_since=NOW - 60,
    progress=(300, 205, 205),
    outstanding=300,
    outstanding_at=NOW - 90,
)
"""A new epoch is due for a stall."""


def test_a_stall_says_nothing_of_another_link_which_is_compared_before_it_flows() -> None:
    held = replace(SENT, pause_remaining=25.0)
    down, back, flows = course(
        replace(sent(0, asked_at=-61), link=DOWN, consumer=held),
        replace(sent(10, asked_at=-61), link=UplinkStatus(True, NOW + 9, "s/2"), consumer=held),
        replace(
            sent(11, asked_at=10.5),
            link=UplinkStatus(True, NOW + 9, "s/2"),
            consumer=held,
            comparison=replace(TAKES_NOTHING, asked_at=NOW + 10.5, link_key="s/2"),
        ),
        memory=STALLED,
    )
    assert (down.state, down.memory.due) == (LinkState.DOWN, None)
    assert (back.state, back.actions) == (LinkState.COMPARING, (AnnounceNow(),))
    assert (flows.state, flows.actions) == (LinkState.FLOWING, (Resume(),))


def test_a_link_that_came_anew_between_two_looks_is_compared_before_it_flows() -> None:
    held = replace(SENT, pause_remaining=25.0)
    link = UplinkStatus(True, NOW - 0.1, "s/2")
    (back,) = course(replace(sent(0, asked_at=-61), link=link, consumer=held), memory=STALLED)
    assert (back.state, back.actions) == (LinkState.COMPARING, (AnnounceNow(),))


def test_a_hub_that_does_not_answer_once_the_consumer_pauses_is_not_known_to_be_stalled() -> None:
    held = replace(SENT, ack_pending=0, pause_remaining=25.0)
    long = UplinkStatus(True, NOW - 200, "s/1")
    (resumes,) = course(replace(sent(0, asked_at=-61, consumer=held), link=long), memory=STALLED)
    assert (resumes.memory.due, resumes.actions) == (None, (Resume(),))


def test_a_repair_that_is_due_outlives_a_lost_link() -> None:
    due = decide(KNOWN, seen(comparison=LOST))
    lost = after(due, 1, seen(link=DOWN, consumer=PAUSED))
    assert lost.state is LinkState.DOWN
    back = UplinkStatus(True, NOW + 5, "s/2")
    assert after(lost, 5, seen(link=back, consumer=PAUSED)).actions == (AnnounceNow(),)


def test_a_repair_that_had_to_wait_asks_the_hub_when_it_may_begin() -> None:
    gone = seen(consumer=None)
    postponed = decide(KNOWN, replace(gone, may_repair_at=NOW + 10))
    assert after(postponed, 9, replace(gone, may_repair_at=NOW + 10)).state is LinkState.POSTPONED
    begins = after(after(postponed, 9, replace(gone, may_repair_at=NOW + 10)), 10, gone)
    assert begins.actions == (AnnounceNow(),)
    fresh = replace(gone, comparison=replace(SAID, asked_at=NOW + 11))
    assert after(begins, 12, fresh).actions == (Repair(GONE),)


def test_every_state_has_a_sentence_and_the_gravest_counts() -> None:
    assert set(SENTENCES) == set(LinkState)
    assert all(sentence(state, "x") for state in LinkState)
    assert worst([LinkState.FLOWING, LinkState.STUCK, LinkState.DOWN]) is LinkState.STUCK
    assert worst([LinkState.FLOWING]) in ORDINARY
