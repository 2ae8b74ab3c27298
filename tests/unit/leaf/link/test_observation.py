"""Whether leaf and hub hold the same, where a new epoch begins, and which class goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.jetstream import ConsumerInfo
from agent.leaf.link.guard import EpochReason, NewEpoch
from agent.leaf.link.observation import (
    CAUGHT_UP,
    TURN_SECONDS,
    HubComparison,
    agreed_start,
    blocking_class,
    confirmed,
    difference,
    discarded,
    may_repair_at,
)

PRIORITIES = {"alarms": 0, "normal": 10, "bulk": 20}
BEHIND = CAUGHT_UP + 1
WELL = HubComparison(
    asked_at=1.0,
    link_key="s/1",
    epoch="e",
    start=1,
    floor=200,
    first=1,
    last=210,
    cursor=205,
    same_at_cursor=True,
    checkpoint=150,
    has_checkpoint=True,
    hub_agrees=True,
    cursor_certain=True,
    hub_state="flowing",
)
sequences = st.integers(min_value=0, max_value=40)


@dataclass(frozen=True)
class Case:
    """What differs from `WELL`, and what follows."""

    name: str
    changes: dict[str, Any]
    verdict: NewEpoch | None


CASES = [
    Case("both agree", {}, None),
    Case(
        "nothing is stored yet",
        {"floor": 0, "last": 0, "cursor": 0, "same_at_cursor": None, "checkpoint": 0},
        None,
    ),
    Case(
        "an epoch that has stored nothing yet",
        {"start": 206, "floor": 205, "cursor": 0, "same_at_cursor": None},
        None,
    ),
    Case("the message at the cursor has no id", {"same_at_cursor": None}, None),
    Case("the checkpoint was purged on the hub", {"hub_agrees": None}, None),
    Case(
        "the leaf's stream was purged beyond the cursor, which lifts the floor",
        {"cursor": 100, "floor": 149, "first": 150},
        None,
    ),
    Case(
        "the hub lacks the last that it had acknowledged",
        {"cursor": 199},
        NewEpoch(EpochReason.HUB_LOST, 200),
    ),
    Case(
        "hub restored to before the first message of the epoch",
        {"start": 200, "cursor": 0, "same_at_cursor": None},
        NewEpoch(EpochReason.HUB_LOST, 151),
    ),
    Case(
        "hub restored, before data flowed",
        {"cursor": 100, "hub_agrees": False},
        NewEpoch(EpochReason.HUB_LOST, 101),
    ),
    Case(
        "hub restored to after the checkpoint, before data flowed",
        {"cursor": 180},
        NewEpoch(EpochReason.HUB_LOST, 181),
    ),
    Case(
        "hub restored, after data flowed: every cursor looks well",
        {"cursor": 205, "floor": 205, "hub_agrees": False},
        NewEpoch(EpochReason.HUB_LOST, 1),
    ),
    Case(
        "hub restored, after data flowed, and it knows where it was",
        {"cursor": 205, "floor": 205, "hub_agrees": False, "fallback": 140},
        NewEpoch(EpochReason.HUB_LOST, 141),
    ),
    Case(
        "hub restored, before data flowed, and it tells of a place before",
        {"cursor": 145, "hub_agrees": False, "fallback": 140},
        NewEpoch(EpochReason.HUB_LOST, 146),
    ),
    Case(
        "hub restored to below the checkpoint, with an ack floor that trails: it may have taken more since",
        {"cursor": 145, "floor": 100, "hub_agrees": False},
        NewEpoch(EpochReason.HUB_LOST, 1),
    ),
    Case(
        "both restored, the leaf to after the place of which the hub tells",
        {"cursor": 205, "last": 150, "has_checkpoint": False, "hub_agrees": False, "fallback": 140},
        NewEpoch(EpochReason.RESTORED, 141),
    ),
    Case(
        "the hub's stream was recreated",
        {"cursor": 0, "same_at_cursor": None, "hub_agrees": False},
        NewEpoch(EpochReason.HUB_LOST, 1),
    ),
    Case(
        "hub restored, and the leaf has purged a part of what it lacks",
        {"cursor": 120, "first": 120, "floor": 200, "hub_agrees": False, "last": 210},
        NewEpoch(EpochReason.HUB_LOST, 121),
    ),
    Case(
        "the cursor may be too low, and nothing else speaks against it",
        {"cursor": 100, "cursor_certain": False},
        None,
    ),
    Case("leaf restored to one message below the cursor", {"last": 204}, NewEpoch(EpochReason.RESTORED, 151)),
    Case(
        "leaf restored to before the checkpoint, and what it has stored since has flowed",
        {"has_checkpoint": False},
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case("leaf restored to after the checkpoint", {"last": 160}, NewEpoch(EpochReason.RESTORED, 151)),
    Case(
        "leaf restored to before the checkpoint",
        {"last": 120, "has_checkpoint": False},
        NewEpoch(EpochReason.RESTORED, 1),
    ),
    Case(
        "leaf restored and written past the cursor",
        {"last": 250, "same_at_cursor": False},
        NewEpoch(EpochReason.DIFFERENT, 151),
    ),
    Case(
        "leaf restored to before the checkpoint and written past the cursor",
        {"last": 250, "same_at_cursor": False, "has_checkpoint": False},
        NewEpoch(EpochReason.RESTORED, 1),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_difference_is_found_and_the_epoch_begins_where_both_agree(case: Case) -> None:
    assert difference(replace(WELL, **case.changes)) == case.verdict


def test_what_neither_side_holds_any_more_is_named() -> None:
    lost = replace(WELL, cursor=100, same_at_cursor=None, hub_agrees=True, checkpoint=90, first=121)
    assert difference(lost) == NewEpoch(EpochReason.HUB_LOST, 91, lost=(91, 120))
    assert difference(replace(lost, first=91)) == NewEpoch(EpochReason.HUB_LOST, 91), (
        "the leaf still holds all of it"
    )


def test_where_the_hub_holds_all_that_the_leaf_has_an_epoch_begins_behind_it() -> None:
    assert agreed_start(replace(WELL, cursor=210)) == 211


def test_what_was_confirmed_counts_for_nothing_while_something_speaks_against_it() -> None:
    assert confirmed(WELL) == 205
    assert confirmed(replace(WELL, same_at_cursor=None)) == 150
    assert confirmed(replace(WELL, same_at_cursor=None, hub_agrees=None)) == 0
    assert confirmed(replace(WELL, hub_agrees=False)) == 0


def test_messages_that_went_before_the_hub_had_them_are_named() -> None:
    assert discarded(WELL, 0) is None
    assert discarded(replace(WELL, first=206), 0) is None
    assert discarded(replace(WELL, first=209), 0) == (206, 208)
    assert discarded(replace(WELL, first=209), 207) == (208, 208)
    assert discarded(replace(WELL, first=209, same_at_cursor=None, hub_agrees=None), 0) == (206, 208), (
        "the cursor tells"
    )
    fresh = replace(WELL, cursor=0, same_at_cursor=None, checkpoint=0, first=50)
    assert discarded(fresh, 0) is None, "nothing is known of what the hub holds"
    later = replace(fresh, start=41, floor=40)
    assert discarded(later, 0) == (41, 49), "before the epoch nothing is lacking"


@given(
    floor=sequences,
    first=st.integers(min_value=1, max_value=40),
    last=sequences,
    cursor=sequences,
    same_at_cursor=st.sampled_from([True, False, None]),
    checkpoint=sequences,
    has_checkpoint=st.booleans(),
    hub_agrees=st.sampled_from([True, False, None]),
    fallback=sequences,
)
def test_an_epoch_never_begins_after_a_message_on_which_both_do_not_agree(
    floor: int,
    first: int,
    last: int,
    cursor: int,
    same_at_cursor: bool | None,
    checkpoint: int,
    has_checkpoint: bool,
    hub_agrees: bool | None,
    fallback: int,
) -> None:
    seen = replace(
        WELL,
        floor=floor,
        first=first,
        last=last,
        cursor=cursor,
        same_at_cursor=same_at_cursor,
        checkpoint=checkpoint,
        has_checkpoint=has_checkpoint,
        hub_agrees=hub_agrees,
        fallback=fallback,
    )
    proven = {fallback + 1}
    if same_at_cursor and has_checkpoint and cursor <= last:
        proven.add(cursor + 1)
    if hub_agrees and has_checkpoint:
        proven.add(checkpoint + 1)
    start = agreed_start(seen)
    assert fallback + 1 <= start
    assert start in proven


def turn(cls: str, linked: float = 1.0, **behind: int) -> str:
    return blocking_class(cls, PRIORITIES, behind, linked)


def test_the_class_with_the_smallest_number_goes_first_and_the_others_name_it() -> None:
    assert turn("alarms", alarms=BEHIND, normal=BEHIND, bulk=BEHIND) == ""
    assert turn("normal", alarms=BEHIND, normal=BEHIND, bulk=BEHIND) == "alarms"
    assert turn("bulk", alarms=BEHIND, normal=BEHIND, bulk=BEHIND) == "alarms"


def test_the_next_goes_when_the_first_has_caught_up_but_for_what_flows() -> None:
    assert turn("normal", alarms=CAUGHT_UP, normal=BEHIND, bulk=BEHIND) == ""
    assert turn("bulk", alarms=CAUGHT_UP, normal=BEHIND, bulk=BEHIND) == "normal"


def test_nobody_waits_for_ever() -> None:
    assert turn("bulk", TURN_SECONDS, alarms=BEHIND) == ""


def test_classes_of_one_priority_go_together() -> None:
    assert blocking_class("a", {"a": 1, "b": 1}, {"a": 1000, "b": 1000}, 0.0) == ""


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 3), st.integers(0, 200)), min_size=1)
)
def test_somebody_may_always_go(classes: dict[str, tuple[int, int]]) -> None:
    priorities = {name: priority for name, (priority, _) in classes.items()}
    behind = {name: messages for name, (_, messages) in classes.items()}
    waits = {name: blocking_class(name, priorities, behind, 0.0) for name in classes}
    assert "" in waits.values()
    assert all(waits[other] == "" for other in waits.values() if other), "who is waited for does not wait"


THERE = ConsumerInfo("hub-e", "", 5, 5, 0, 0, 5, 1, 0.0, True, {})


@pytest.mark.parametrize(
    ("consumer", "due", "expected"),
    [
        (THERE, None, 30.0),
        (THERE, NewEpoch(EpochReason.HUB_LOST, 1), 30.0),
        (THERE, NewEpoch(EpochReason.STALLED, 1), 10.0),
        (None, None, 10.0),
        (None, NewEpoch(EpochReason.CONSUMER_GONE, 1), 10.0),
    ],
)
def test_classes_that_a_server_forgot_or_takes_nothing_of_do_not_wait_for_each_other(
    consumer: ConsumerInfo | None, due: NewEpoch | None, expected: float
) -> None:
    assert may_repair_at(consumer, due, domain=30.0, own=10.0) == expected
