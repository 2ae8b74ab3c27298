"""When a batch is sealed."""

from __future__ import annotations

import asyncio

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
