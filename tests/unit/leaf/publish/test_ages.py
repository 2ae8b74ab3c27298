"""How long ago something was sealed, whatever became of the wall clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.clock import Instant
from agent.contract import Clock
from agent.leaf.publish.idempotency import Ages

SECOND = 10**9


def at(monotonic: int, boot: str = "now", wall: int = 0, *, synchronised: bool = False) -> Instant:
    return Instant(wall * SECOND, Clock(synchronised, boot, monotonic * SECOND))


@pytest.mark.parametrize("wall", [-(10**9), 0, 10**9])
def test_within_a_boot_the_wall_clock_says_nothing(wall: int) -> None:
    assert Ages(at(100, wall=wall)).of(at(40)) == 60


def test_an_earlier_boot_ran_at_least_until_its_last_instant() -> None:
    ages = Ages(at(100))
    assert [ages.of(one) for one in (at(70), at(500, "before"), at(440, "before"), at(9, "first"))] == [
        30,
        100,
        160,
        600,
    ]


def test_the_time_for_which_the_machine_was_off_counts_where_both_clocks_were_right() -> None:
    off = at(500, "before", wall=1_000, synchronised=True)
    assert Ages(at(20, wall=9_000, synchronised=True)).of(off) == 8_000
    assert Ages(at(20, wall=9_000)).of(off) == 20


@given(
    runs=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1, max_size=5),
    data=st.data(),
)
def test_an_age_is_never_too_large(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    began, instants = 0, []
    for boot, (ran, off) in enumerate(runs):
        moments = data.draw(st.lists(st.integers(0, ran), max_size=4).map(sorted))
        instants += [(began + moment, at(moment, str(boot))) for moment in moments]
        began += ran + off
    true_now = began - runs[-1][1]
    ages = Ages(at(runs[-1][0], str(len(runs) - 1)))
    for true, one in reversed(instants):
        assert ages.of(one) <= true_now - true
