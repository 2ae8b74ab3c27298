"""Keeping an input running: what fails is told once, started again with backoff, and told once when it is
well."""

from __future__ import annotations

import asyncio

import structlog

from agent.intake import Input, Intake
from agent.metrics import Metrics

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0

log = structlog.get_logger("input")


async def keep_running(one: Input, intake: Intake, stopping: asyncio.Event, metrics: Metrics) -> None:
    """Run an input until `stopping` is set and it has ended; an input that fails takes nothing else with
    it."""
    loop = asyncio.get_running_loop()
    failures, complaint = 0, ""
    while not stopping.is_set():
        began = loop.time()
        metrics.input_up.labels(one.name).set(1)
        try:
            await one.run(intake, stopping)
            return
        except Exception as error:  # whatever an input fails with is its own
            if loop.time() - began > _STEADY_SECONDS:
                failures, complaint = 0, ""
            text = f"{type(error).__name__}: {error}"
            if text != complaint:
                log.error("input failed and is started again", input=one.name, error=text, exc_info=error)
            complaint = text
        finally:
            metrics.input_up.labels(one.name).set(0)
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10))
        failures += 1
        try:
            async with asyncio.timeout(delay):
                await stopping.wait()
        except TimeoutError:
            continue
