from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.publish.limits import RateLimit


def test_without_a_limit_all_is_let_in() -> None:
    assert RateLimit().take(10**9, 0.0) == 0


def test_what_may_come_in_one_second_is_let_in_at_once_and_no_more() -> None:
    rate = RateLimit()
    rate.limit(10.0)
    assert rate.take(10, 100.0) == 0
    assert rate.take(1, 100.0) == pytest.approx(0.1)
    assert rate.take(1, 100.2) == 0


def test_a_chunk_above_the_limit_is_let_in_alone_and_paid_for() -> None:
    rate = RateLimit()
    rate.limit(10.0)
    assert rate.take(50, 100.0) == 0
    assert rate.take(1, 101.0) == pytest.approx(3.1)
    assert rate.take(1, 104.2) == 0


def test_a_limit_that_is_lifted_holds_no_more() -> None:
    rate = RateLimit()
    rate.limit(1.0)
    rate.take(1, 100.0)
    rate.limit(None)
    assert rate.take(1000, 100.0) == 0


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 2)), max_size=60))
def test_no_more_comes_in_than_the_rate_and_who_waits_as_told_is_let_in(
    chunks: list[tuple[int, float]],
) -> None:
    rate, now, let_in = RateLimit(), 0.0, 0
    rate.limit(10.0)
    for readings, pause in chunks:
        now += pause
        wait = rate.take(readings, now)
        if wait > 0:
            now += wait * 1.000001
            assert rate.take(readings, now) == 0
        let_in += readings
        assert let_in <= 10 * now + 10 + 30
