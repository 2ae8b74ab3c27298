"""Waits for the outcome of a chunk, and when its batch is sealed."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from agent.base.clock import Instant
from agent.base.metrics import Metrics
from agent.contract import Clock
from agent.leaf.acks import HubAckWaiters
from agent.leaf.intake import Chunk
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.accumulator import BatchLimits
from agent.leaf.publish.limits import Lingers
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.send_queue import Deadlines, Settlement


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


async def test_a_wait_ends_at_its_deadline_though_it_began_behind_a_later_one() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    waits = {deadline: Settlement().wait(loop) for deadline in (12.0, 15.0, 10.0)}
    for deadline, wait in waits.items():
        deadlines.add(deadline, wait)
    for now in (10.0, 12.0, 15.0):
        deadlines.sweep(now)
        assert [deadline for deadline, wait in sorted(waits.items()) if not wait.done()] == [
            later for later in (12.0, 15.0) if later > now
        ]
    for wait in waits.values():
        with pytest.raises(TimeoutError):
            await wait


async def test_waits_that_have_ended_take_no_memory() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    for _ in range(1_000):
        settlement = Settlement()
        deadlines.add(10.0, settlement.wait(loop))
        settlement.set_result(None)
    deadlines.sweep(0.0)
    assert not deadlines._waits


def test_a_batch_that_lingers_is_sealed_by_its_own_timer_though_timers_of_uvloop_fire_early() -> None:
    uvloop.run(sealed_by_timers(20))


async def sealed_by_timers(batches: int) -> None:
    """Fails where a batch waits for what nobody calls here: the sweep of those that waited too long."""
    publisher = Publisher(
        BatchLimits(2**20, 1000, Lingers(default=0.0104)),
        2**20,
        Metrics(),
        lambda _: None,
        ledgers={"normal": ClassLedger("edge-1", "normal", "run")},
        levels={},
        clock=lambda: Instant(10**18, Clock(True, "boot", 10**9)),
        hub=HubAckWaiters(lambda _: ""),
    )
    async with asyncio.timeout(60):
        for number in range(batches):
            waiting = asyncio.create_task(publisher.submit("http", "normal", Chunk(b"%d" % number, 1)))
            while not len(publisher.queue):
                await publisher.queue.changed()
            for entry in publisher.queue.take().draft.entries:
                publisher.settle("normal", entry, None, number)
            await waiting
