"""Tells of the time to first loss: as a gauge, and each minute as a reading of its own, so that a fleet can
be watched from the table. Says nothing while nothing moves: an idle leaf stays idle."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from agent.base.clock import wall_ns
from agent.base.metrics import Metrics
from agent.contract import AGENT_INPUT, Reading, machine_time
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError
from agent.leaf.link.time_to_loss import Horizon

METRIC: Final = "petiole_seconds_to_loss"
REPORT_SECONDS: Final = 60.0
FARTHEST: Final = 10 * 365 * 86_400.0
"""Seconds; JSON has no number for infinity, and a reading that were now a number and now a text could not be
compared with a bound."""

log = structlog.get_logger("link")


class HorizonReport:
    """To the core an input named `agent`. Its readings go into the class `cls`, each with the tag `class` of
    the class that it tells of; what is further away than `FARTHEST` counts as that."""

    name = AGENT_INPUT

    def __init__(self, horizon: Horizon, cls: str, metrics: Metrics, seconds: float = REPORT_SECONDS) -> None:
        self._horizon, self._cls, self._seconds = horizon, cls, seconds
        self._told = 0
        for name in horizon.seconds:
            metrics.seconds_to_loss.labels(name).set_function(partial(horizon.seconds.__getitem__, name))

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Report each minute in which something moved, until `stopping` is set."""
        while not stopping.is_set():
            try:
                async with asyncio.timeout(self._seconds):
                    await stopping.wait()
            except TimeoutError:
                await self._report(intake)

    async def _report(self, intake: Intake) -> None:
        seen = sum(self._horizon.last(name) for name in self._horizon.seconds)
        # Each class's ledger adds a record in such a minute, and this a batch: they must not keep themselves
        # going.
        moved = seen - self._told > len(self._horizon.seconds) + 1
        self._told = seen
        if not moved:
            return
        now = machine_time(wall_ns())
        lines = [
            Reading(METRIC, min(left, FARTHEST), ts=now, tags={"class": name}).encode()
            for name, left in self._horizon.seconds.items()
        ]
        try:
            await intake.submit(self.name, self._cls, Chunk(b"\n".join(lines) + b"\n", len(lines)))
        except (RefusedError, UnknownOutcomeError) as error:
            log.debug("no reading of the time to first loss this minute", error=str(error))
