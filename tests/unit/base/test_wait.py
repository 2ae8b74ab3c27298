"""Waiting, backoff and bounded gathering."""

from __future__ import annotations

import asyncio

import pytest

from agent.base import wait
from agent.base.wait import Backoff, bounded_gather, event_within, loop_time, timeout, timeout_at, unless


async def test_an_event_is_awaited_no_longer_than_its_timeout() -> None:
    event = asyncio.Event()
    assert not await event_within(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await event_within(event, None)
    assert await event_within(event, 0)


async def test_the_cancellation_of_a_wait_is_not_taken_for_its_timeout() -> None:
    task = asyncio.create_task(event_within(asyncio.Event(), 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _waits_in_vain(seconds: float) -> str:
    try:
        async with timeout(seconds):
            await asyncio.sleep(60)
    except TimeoutError:
        return "timed out"
    return "ended"


async def _fails() -> None:
    raise ValueError("one")


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
async def test_a_timeout_after_a_group_has_failed_is_a_timeout(seconds: float) -> None:
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(_fails())
    assert await _waits_in_vain(seconds) == "timed out"


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
async def test_a_cancelled_task_that_cleans_up_has_its_timeouts(seconds: float) -> None:
    cleaned = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(await _waits_in_vain(seconds))
            cleaned.append(await _waits_in_vain(seconds))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["timed out", "timed out"]


async def test_a_cancellation_that_meets_a_timeout_is_not_lost() -> None:
    async def work() -> None:
        async with timeout_at(loop_time()) as limit:
            task = asyncio.current_task()
            assert task is not None
            try:
                await asyncio.sleep(60)
            finally:
                assert limit.expired()
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def test_an_error_of_its_own_passes_a_timeout_that_has_expired() -> None:
    async def work() -> None:
        async with timeout(0):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await _fails()

    with pytest.raises(ValueError, match="one"):
        await work()


async def test_a_wait_ends_when_the_agent_stops() -> None:
    stopping, began = asyncio.Event(), loop_time()
    assert await unless(stopping, asyncio.sleep(0, "result")) == "result"
    asyncio.get_running_loop().call_later(0.01, stopping.set)
    assert await unless(stopping, asyncio.sleep(10, "result")) is None
    assert loop_time() - began < 5


def test_delays_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 30.0)
    assert [backoff.next() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.failures == 8
    for _ in range(5000):
        delay = backoff.next()
    assert delay == 30
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 0.5)


async def test_an_attempt_that_lasts_long_enough_is_a_success_and_its_delay_does_not_count() -> None:
    backoff, loop = Backoff(1.0, 30.0, steady=60.0), asyncio.get_running_loop()
    now = [loop.time()]
    delays = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wait, "loop_time", lambda: now[0])
        for lasts in (1.0, 61.0, 59.0, 60.5):
            now[0] += lasts
            delays.append(backoff.next())
            now[0] += delays[-1]
    assert delays == [1.0, 1.0, 2.0, 1.0]


async def test_a_bounded_number_is_under_way_and_results_keep_their_order() -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return -number

    assert await bounded_gather(ask, range(100)) == [-number for number in range(100)]
    assert most == 32


async def test_of_many_items_only_those_under_way_have_a_task() -> None:
    tasks = list[int]()

    async def ask(number: int) -> None:
        tasks.append(len(asyncio.all_tasks()))
        await asyncio.sleep(0)

    await bounded_gather(ask, range(1_000))
    assert len(tasks) == 1_000
    assert max(tasks) <= 1 + 32


async def test_one_item_needs_no_task() -> None:
    async def ask(number: int) -> tuple[int, asyncio.Task[None] | None]:
        return -number, asyncio.current_task()

    assert await bounded_gather(ask, [3]) == [(-3, asyncio.current_task())]
    assert await bounded_gather(ask, []) == []


async def test_what_waits_its_turn_is_not_asked_any_more_once_one_has_failed() -> None:
    asked = list[int]()

    async def ask(number: int) -> None:
        asked.append(number)
        await asyncio.sleep(0)
        if number == 3:
            raise LookupError
        await asyncio.sleep(0.01)

    with pytest.raises(LookupError):
        await bounded_gather(ask, range(100))
    await asyncio.sleep(0.05)
    assert len(asked) < 50
