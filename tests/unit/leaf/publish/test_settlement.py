"""Waits for the outcome of a chunk."""

from __future__ import annotations

import asyncio

import pytest

from agent.leaf.publish.settlement import Deadlines, Settlement


async def test_all_that_wait_hear_the_outcome_and_one_that_gave_up_takes_nothing_from_the_others() -> None:
    settlement, loop = Settlement(), asyncio.get_running_loop()
    first, second = settlement.wait(loop), settlement.wait(loop)
    first.cancel()
    refusal = ValueError("full")
    settlement.set_result(refusal)
    assert await second is refusal
    assert settlement.done()
    assert settlement.result() is refusal


async def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    early, late = Settlement().wait(loop), Settlement().wait(loop)
    deadlines.add(10.0, early)
    deadlines.add(11.0, late)
    deadlines.sweep(9.9)
    assert not early.done()
    deadlines.sweep(10.0)
    with pytest.raises(TimeoutError):
        await early
    assert not late.done()


async def test_waits_that_have_ended_take_no_memory() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    for _ in range(1_000):
        settlement = Settlement()
        deadlines.add(10.0, settlement.wait(loop))
        settlement.set_result(None)
    deadlines.sweep(0.0)
    assert not deadlines._waits
