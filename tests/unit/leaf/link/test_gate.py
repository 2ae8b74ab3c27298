"""When a link is dialled again that its hub does not take."""

from __future__ import annotations

import pytest

from agent.leaf.link.gate import LOOK_SECONDS, DialSpread
from agent.leaf.link.observation import UplinkStatus

SPREAD = 40.0
DOWN, UP = UplinkStatus(False, 100.0), UplinkStatus(True, 500.0, "s/1")


@pytest.fixture
def dials() -> DialSpread:
    return DialSpread(lambda: 0.5)


def test_a_link_has_time_to_come_up_before_it_is_late(dials: DialSpread) -> None:
    assert not dials.is_late(DOWN, 100.0 + LOOK_SECONDS - 0.1)
    assert dials.is_late(DOWN, 100.0 + LOOK_SECONDS)
    assert not dials.is_late(UP, 600.0)


def test_a_hub_has_time_to_take_the_link_from_when_it_answers(dials: DialSpread) -> None:
    assert not dials.answered(True, 200.0)
    assert not dials.answered(True, 200.0 + LOOK_SECONDS - 0.1)
    assert dials.answered(True, 200.0 + LOOK_SECONDS)
    assert not dials.answered(False, 300.0)
    assert not dials.answered(True, 310.0)
    dials.is_waiting(UP, 510.0)
    assert not dials.answered(True, 520.0)


def test_it_waits_and_then_has_as_much_time_again(dials: DialSpread) -> None:
    assert dials.wait(SPREAD, 200.0) == 20.0
    assert dials.is_waiting(DOWN, 219.0)
    assert not dials.is_waiting(DOWN, 220.0)
    assert not dials.is_late(DOWN, 220.0 + LOOK_SECONDS - 0.1)
    assert dials.is_late(DOWN, 220.0 + LOOK_SECONDS)


def test_each_further_wait_is_of_twice_as_much_up_to_four_times(dials: DialSpread) -> None:
    assert [dials.wait(SPREAD, 0.0) for _ in range(6)] == [20.0, 40.0, 80.0, 80.0, 80.0, 80.0]


@pytest.mark.parametrize(("lasted", "waits"), [(59.0, 40.0), (60.0, 20.0)])
def test_a_link_that_lasts_a_minute_was_taken(dials: DialSpread, lasted: float, waits: float) -> None:
    dials.wait(SPREAD, 0.0)
    assert not dials.is_waiting(UP, UP.since + lasted)
    assert dials.wait(SPREAD, 1_000.0) == waits


def test_a_link_that_came_up_meanwhile_is_not_closed(dials: DialSpread) -> None:
    dials.wait(SPREAD, 499.0)
    assert not dials.is_waiting(UP, 501.0)
    assert not dials.is_waiting(UplinkStatus(False, 502.0), 503.0)


def test_leaves_wait_for_different_times() -> None:
    waits = {DialSpread().wait(SPREAD, 0.0) for _ in range(100)}
    assert len(waits) > 90
    assert max(waits) <= SPREAD
