from __future__ import annotations

import asyncio

from agent.base.supervisor import Switch
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
