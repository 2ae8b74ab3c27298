"""The bounds on bytes in memory and on readings a second."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.intake import Chunk, RefusalReason
from agent.leaf.publish.limits import HEADER_BYTES, Admission, ByteBudget, RateLimit

LIMIT = 100


async def waiting(budget: ByteBudget, size: int) -> asyncio.Task[None]:
    """A task that waits for room, seen to wait."""
    task = asyncio.create_task(budget.acquire(size))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_what_fits_is_given_at_once() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(60)
    await budget.acquire(40)
    assert budget.used == 100


async def test_what_does_not_fit_waits_until_enough_is_given_back() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(60)
    task = await waiting(budget, 50)
    budget.release(60)
    await task
    assert budget.used == 50


async def test_who_came_first_is_served_first_even_when_a_later_one_would_fit() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(60)
    large = await waiting(budget, 90)
    small = await waiting(budget, 10)
    budget.release(60)
    await asyncio.gather(large, small)
    assert budget.used == 100


async def test_a_request_above_the_limit_is_let_through_alone() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(1)
    huge = await waiting(budget, 1000)
    budget.release(1)
    await huge
    await waiting(budget, 1)
    assert budget.used == 1000


async def test_a_wait_that_is_cancelled_takes_nothing_and_lets_the_next_one_in() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(60)
    large = await waiting(budget, 90)
    small = await waiting(budget, 10)
    large.cancel()
    await small
    assert large.cancelled()
    assert budget.used == 70


async def test_room_given_back_in_the_moment_of_a_cancellation_goes_to_the_next_one() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(100)
    first = await waiting(budget, 100)
    second = await waiting(budget, 100)
    first.cancel()
    budget.release(100)
    await second
    assert first.cancelled()
    assert budget.used == 100


async def test_room_that_was_granted_in_the_moment_of_a_cancellation_is_given_back() -> None:
    budget = ByteBudget(LIMIT)
    await budget.acquire(100)
    first = await waiting(budget, 100)
    budget.release(100)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    assert budget.used == 0


@given(st.lists(st.tuples(st.integers(1, 150), st.booleans()), max_size=40))
def test_whatever_is_cancelled_all_is_given_back_and_nobody_is_forgotten(
    wishes: list[tuple[int, bool]],
) -> None:
    async def play() -> None:
        budget = ByteBudget(LIMIT)
        served: list[int] = []

        async def use(number: int, size: int) -> None:
            await budget.acquire(size)
            try:
                assert budget.used <= LIMIT or budget.used == size
                served.append(number)
                await asyncio.sleep(0)
            finally:
                budget.release(size)

        tasks = [asyncio.create_task(use(number, size)) for number, (size, _) in enumerate(wishes)]
        await asyncio.sleep(0)
        for task, (_, cancelled) in zip(tasks, wishes, strict=True):
            if cancelled:
                task.cancel()
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used == 0
        assert served == sorted(served)
        assert {number for number, (_, cancelled) in enumerate(wishes) if not cancelled} <= set(served)

    asyncio.run(play())


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
            now += wait * 1.000001 + 1e-9  # a clock moves on, also where the rest is a rounding error
            assert rate.take(readings, now) == 0
        let_in += readings
        assert let_in <= 10 * now + 10 + 30


def admission(own: int, hub: int) -> Admission:
    found = Admission(lambda _: None)
    found.hub_takes = lambda: hub
    if own:
        found.server_back(own)
    return found


@pytest.mark.parametrize(
    ("own", "hub", "most", "server"),
    [
        (5000, 0, 5000, "the local server"),
        (5000, 9000, 5000, "the local server"),
        (9000, 5000, 5000, "the hub's server"),
    ],
)
async def test_a_message_is_no_larger_than_both_servers_take(
    own: int, hub: int, most: int, server: str
) -> None:
    bounded = admission(own, hub)
    assert bounded.too_large(most, 1) is None
    refusal = bounded.too_large(most + 1, 1)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after) == (RefusalReason.TOO_LARGE, None)
    assert str(refusal).startswith(f"{most + 1} bytes compressed, {server} takes {most} in a message")
    assert str(refusal).endswith(f"raise max_payload of {server}")
    assert str(bounded.too_large(most + 1, 2)).endswith("send fewer readings")


async def test_what_may_be_too_large_for_a_server_is_not_promised_before_it_is_stored() -> None:
    def fits(size: int, own: int) -> bool:
        return admission(own, 0).fits(Chunk(bytes(size), 1))

    assert fits(5000 - HEADER_BYTES, 5000)
    assert not fits(5001 - HEADER_BYTES, 5000)
    assert fits(2**20 - HEADER_BYTES, 0)
    assert not fits(2**20, 0)
