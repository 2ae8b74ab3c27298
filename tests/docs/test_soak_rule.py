"""When the soak test calls something flat."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.flat import Point, judged

SECONDS = 900


def sampled(value: float, per_second: float = 0.0, noise: float = 0.0, seed: int = 1) -> list[Point]:
    chance = random.Random(seed)
    return [(float(t), value + per_second * t + chance.uniform(-noise, noise)) for t in range(0, SECONDS, 5)]


def test_what_stays_is_flat_however_much_it_jitters() -> None:
    assert judged(sampled(60.0, noise=5.0), allowance=1.0).flat


@pytest.mark.parametrize("per_minute", [1.0, 2.0, 5.0])
def test_what_grows_is_found_under_noise(per_minute: float) -> None:
    found = judged(sampled(60.0, per_minute / 60, noise=3.0), allowance=4.0)
    assert found.flat is False
    assert found.growth == pytest.approx(per_minute * SECONDS * 0.8 / 60, rel=0.35)


def test_what_grows_while_it_warms_up_is_flat() -> None:
    points = [(t, min(60.0, 20.0 + t)) for t, _ in sampled(0.0)]
    assert judged(points, allowance=1.0).flat


def test_a_burst_that_goes_again_is_flat() -> None:
    points = [(t, value + (400.0 if 400 < t < 480 else 0.0)) for t, value in sampled(60.0)]
    assert judged(points, allowance=1.0).flat


def test_what_falls_is_flat() -> None:
    assert judged(sampled(600.0, -0.5), allowance=1.0).flat


def test_too_few_samples_say_nothing() -> None:
    assert judged([], 1.0).flat is None
    assert judged([(0.0, 1.0)], 1.0).flat is None
    assert judged(sampled(1.0)[:10], 1.0).flat is None


@given(st.floats(1, 1e6), st.floats(0, 1e6))
def test_a_constant_is_flat_under_any_allowance(value: float, allowance: float) -> None:
    assert judged(sampled(value), allowance).flat
