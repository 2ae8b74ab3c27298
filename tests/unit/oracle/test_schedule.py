"""A seed decides the order of the faults, and nothing else does."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.schedule import schedule, seed_of

FAULTS = ["kill", "freeze", "cut"]


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_every_fault_comes_as_often_as_asked_for(seed: int, rounds: int) -> None:
    steps = schedule(seed, FAULTS, rounds, 3.0)
    assert Counter(one.fault for one in steps) == dict.fromkeys(FAULTS, rounds)
    assert all(0 <= one.after <= 3 for one in steps)
    assert steps == schedule(seed, list(reversed(FAULTS)), rounds, 3.0)


def test_another_seed_is_another_order() -> None:
    assert len({tuple(schedule(seed, FAULTS, 3, 3.0)) for seed in range(20)}) == 20


@given(st.integers(0, 2**32))
def test_a_fault_seldom_follows_itself(seed: int) -> None:
    steps = schedule(seed, FAULTS, 3, 1.0)
    assert sum(one.fault == after.fault for one, after in pairwise(steps)) <= 2


def test_the_seed_comes_from_the_environment() -> None:
    assert seed_of({}) == 1
    assert seed_of({"SEED": "7"}) == 7
    with pytest.raises(ValueError, match="seven"):
        seed_of({"SEED": "seven"})
