"""The time to first loss as a gauge and as readings."""

from __future__ import annotations

import asyncio
import math

from agent.base.metrics import Metrics
from agent.contract import parse_reading
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint
from agent.leaf.link.time_to_loss import Horizon
from agent.leaf.link.time_to_loss_report import FARTHEST, HorizonReport
from tests.harness.intakes import NoLetters
from tests.harness.wait import until
from tests.unit.leaf.link.test_time_to_loss import stream


class Taken(NoLetters):
    """An intake that keeps what it is given, or refuses it."""

    domain = "edge-1"

    def __init__(self) -> None:
        self.chunks: list[tuple[str, str, Chunk]] = []
        self.refuses = False

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        self.chunks.append((input_name, cls, chunk))
        if self.refuses:
            raise RefusedError(RefusalReason.FULL, "full", 1.0)

    async def position(self, input_name: str) -> ResumePoint:
        return ResumePoint()


async def test_a_minute_in_which_something_moved_is_told_and_one_in_which_nothing_did_is_not() -> None:
    horizon, metrics, taken = Horizon({"alarms": 10**6, "normal": 10**6}), Metrics(), Taken()
    report = HorizonReport(horizon, "alarms", metrics, seconds=0.02)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(report.run(taken, stopping))
        await asyncio.sleep(0.1)
        assert not taken.chunks
        horizon.observe("normal", stream(100), 0, 0.0)
        horizon.observe("normal", stream(110), 0, 10.0)
        await until(lambda: len(taken.chunks) == 1, "it is told")
        horizon.observe("normal", stream(113), 0, 13.0)  # two ledger records and the report itself
        await asyncio.sleep(0.1)
        assert len(taken.chunks) == 1
        taken.refuses = True
        horizon.observe("normal", stream(120), 0, 20.0)
        await until(lambda: len(taken.chunks) == 2, "it goes on after a refusal")
        stopping.set()
    name, cls, chunk = taken.chunks[0]
    assert (name, cls, chunk.count) == ("agent", "alarms", 2)
    told = {one.tags["class"]: one for one in map(parse_reading, chunk.payload.splitlines())}
    assert told["alarms"].value == FARTHEST
    assert told["normal"].value == (1000 - 110) / 1.0
    assert told["normal"].metric == "petiole_seconds_to_loss"
    assert metrics.registry.get_sample_value("petiole_seconds_to_loss", {"class": "alarms"}) == math.inf
