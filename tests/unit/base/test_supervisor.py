from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from agent.base.supervisor import Switch, restart_failing
from tests.harness.wait import until


async def test_a_part_is_turned_off_and_on_again_and_ends_when_the_agent_stops() -> None:
    running, ended = [0], [0]

    async def part(stopping: asyncio.Event) -> None:
        running[0] += 1
        await stopping.wait()
        running[0] -= 1
        ended[0] += 1

    switch, stopping = Switch(), asyncio.Event()
    task = asyncio.create_task(switch.run(part, stopping))
    await until(lambda: running == [1], "it runs")
    switch.turn(False)
    await until(lambda: running == [0], "it is off")
    switch.turn(False)
    switch.turn(True)
    await until(lambda: running == [1], "it runs again")
    switch.turn(False)
    switch.turn(True)
    await until(lambda: ended == [2] and running == [1], "it was begun anew")
    stopping.set()
    await asyncio.wait_for(task, 60)
    assert (running, ended) == ([0], [3])


async def test_a_part_that_is_off_does_not_hold_up_the_end() -> None:
    async def part(stopping: asyncio.Event) -> None:
        await stopping.wait()

    switch, stopping = Switch(), asyncio.Event()
    switch.turn(False)
    task = asyncio.create_task(switch.run(part, stopping))
    await asyncio.sleep(0)
    stopping.set()
    await asyncio.wait_for(task, 60)


async def _raises_for_a_task_of_its_own() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def _exits() -> None:
    raise SystemExit(3)


class _PanicError(BaseException):
    """What a library in Rust raises where it panics."""


async def _panics() -> None:
    raise _PanicError


async def _panics_in_a_task() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_panics())


async def _fails() -> None:
    raise ValueError("one")


async def _fails_in_a_group_at_its_end() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())


async def _fails_in_a_group_that_works() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    "failure",
    [
        _raises_for_a_task_of_its_own,
        _exits,
        _panics,
        _panics_in_a_task,
        _fails_in_a_group_at_its_end,
        _fails_in_a_group_that_works,
    ],
    ids=lambda one: one.__name__,
)
async def test_a_part_that_seems_cancelled_exits_or_panics_has_failed_and_runs_again(failure: object) -> None:
    runs, stopping = [0], asyncio.Event()

    async def part() -> None:
        runs[0] += 1
        if runs[0] == 1 or stopping.is_set():
            await failure()  # type: ignore[operator]
        await stopping.wait()
        await failure()  # type: ignore[operator]

    task = asyncio.create_task(restart_failing(part, stopping, "input", "one"))
    await until(lambda: runs == [2], "it runs again")
    stopping.set()
    await asyncio.wait_for(task, 60)
    assert not task.cancelled()


async def test_a_part_is_ended_by_a_cancellation_from_outside() -> None:
    runs, stopping = [0], asyncio.Event()

    async def part() -> None:
        runs[0] += 1
        await stopping.wait()

    task = asyncio.create_task(restart_failing(part, stopping, "input", "one"))
    await until(lambda: runs == [1], "it runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert runs == [1]


async def test_a_part_that_fails_when_it_is_cancelled_does_not_run_again() -> None:
    runs = [0]

    async def part() -> None:
        runs[0] += 1
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("it cannot be closed")

    task = asyncio.create_task(restart_failing(part, asyncio.Event(), "service", "one"))
    await until(lambda: runs == [1], "it runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert runs == [1]


async def test_a_part_begins_each_run_as_a_task_that_nobody_has_cancelled() -> None:
    cancelled, stopping = list[int](), asyncio.Event()

    async def part() -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelled.append(task.cancelling())
        if len(cancelled) == 1:
            await _fails_in_a_group_at_its_end()
        await stopping.wait()

    task = asyncio.create_task(restart_failing(part, stopping, "input", "one"))
    await until(lambda: len(cancelled) == 2, "it runs again")
    stopping.set()
    await asyncio.wait_for(task, 60)
    assert cancelled == [0, 0]


async def test_the_error_of_a_run_is_not_kept_during_the_next_run() -> None:
    class _Held:
        """What a frame of the run that failed refers to."""

    held, stopping = list[weakref.ref[_Held]](), asyncio.Event()

    async def part() -> None:
        one = _Held()
        held.append(weakref.ref(one))
        if len(held) == 1:
            raise ValueError("one")
        await stopping.wait()

    task = asyncio.create_task(restart_failing(part, stopping, "input", "one"))
    await until(lambda: len(held) == 2, "it runs again")
    gc.collect()
    assert held[0]() is None
    stopping.set()
    await asyncio.wait_for(task, 60)
