"""The bound on bytes in memory."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given
from hypothesis import strategies as st

from agent.leaf.publish.limits import ByteBudget

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
