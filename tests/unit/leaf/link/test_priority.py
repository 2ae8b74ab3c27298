"""Which class goes first over a link that is back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.link.priority import CAUGHT_UP, TURN_SECONDS, first_in_turn

PRIORITIES = {"alarms": 0, "normal": 10, "bulk": 20}
BEHIND = CAUGHT_UP + 1


def turn(cls: str, linked: float = 1.0, **behind: int) -> str:
    return first_in_turn(cls, PRIORITIES, behind, linked)


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
    assert first_in_turn("a", {"a": 1, "b": 1}, {"a": 1000, "b": 1000}, 0.0) == ""


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 3), st.integers(0, 200)), min_size=1)
)
def test_somebody_may_always_go(classes: dict[str, tuple[int, int]]) -> None:
    priorities = {name: priority for name, (priority, _) in classes.items()}
    behind = {name: messages for name, (_, messages) in classes.items()}
    waits = {name: first_in_turn(name, priorities, behind, 0.0) for name in classes}
    assert "" in waits.values()
    assert all(waits[other] == "" for other in waits.values() if other), "who is waited for does not wait"
