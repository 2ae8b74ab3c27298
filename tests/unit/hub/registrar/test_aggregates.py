"""Which classes may go without a source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_struct

from agent.contract import Announce, Checkpoint, ClassAnswer, ClassState, new_epoch, new_run
from agent.hub.registrar.aggregates import MOST_READ, awake, is_far, may_rest
from agent.hub.registrar.records import AggregateRef, HubPosition, admitted
from agent.jetstream import StreamInfo

IDLE = ClassState(new_epoch(), "created", 1, 7, 7, 100, acked=7, idle=True)
ANNOUNCE = Announce("edge-1", "m", new_run(), {}, {"normal": IDLE})
KNOWN = admitted(ANNOUNCE, None, {"normal": AggregateRef("TELEMETRY_0", "created", 0)}, "now")
HOLDS_ALL = ClassAnswer("TELEMETRY_0", 7, "id", "flowing", agreed=True)


def announce(state: ClassState, *, repairs: bool = False) -> Announce:
    return replace(ANNOUNCE, classes={"normal": state}, repairs=repairs)


def test_an_idle_class_rests_where_both_sides_agree_that_the_hub_holds_all() -> None:
    assert may_rest(ANNOUNCE, "normal", HOLDS_ALL)
    assert awake(ANNOUNCE, KNOWN) == []


@pytest.mark.parametrize(
    "answer",
    [
        replace(HOLDS_ALL, cursor=6),
        replace(HOLDS_ALL, cursor=8),
        replace(HOLDS_ALL, agreed=False),
        replace(HOLDS_ALL, certain=False),
        replace(HOLDS_ALL, fallback=Checkpoint(5, "id", "TELEMETRY_0", 5)),
        *(replace(HOLDS_ALL, state=state) for state in ("contested", "capped", "full", "linking")),
    ],
)
def test_a_class_of_which_the_hub_may_lack_something_keeps_its_source(answer: ClassAnswer) -> None:
    assert not may_rest(ANNOUNCE, "normal", answer)


@pytest.mark.parametrize(
    "news",
    [
        announce(replace(IDLE, idle=False)),
        announce(replace(IDLE, epoch=new_epoch())),
        announce(IDLE, repairs=True),
    ],
)
def test_a_class_with_news_needs_its_source(news: Announce) -> None:
    assert awake(news, KNOWN) == list(news.classes)


def test_a_class_that_is_new_or_announced_no_more_needs_its_source() -> None:
    assert awake(replace(ANNOUNCE, classes={"bulk": IDLE}), KNOWN) == ["bulk", "normal"]


def test_a_class_of_an_unknown_leaf_needs_its_source() -> None:
    assert awake(ANNOUNCE, None) == ["normal"]


@pytest.mark.parametrize(
    ("first", "behind", "every", "far"),
    [
        (1, MOST_READ, 10.0, False),
        (1, MOST_READ + 1, 10.0, True),
        (1, MOST_READ + 1, None, True),
        (2, MOST_READ + 1, 10.0, False),
        (1, MOST_READ + 1, 60.0, False),
    ],
)
def test_a_class_rests_while_little_is_read_to_wake_it_but_over_a_thin_link(
    first: int, behind: int, every: float | None, far: bool
) -> None:
    last = MOST_READ + 1
    info = StreamInfo("TELEMETRY_0", "created", first, last, last + 1 - first, 0, {}, [])
    held = HubPosition(7, "id", last - behind, last)
    record = replace_struct(KNOWN.classes["normal"], held=held)
    assert is_far(replace(ANNOUNCE, every=every), record, info) is far
