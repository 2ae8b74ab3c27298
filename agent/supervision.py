"""Keeping parts running: what fails is told once, started again with backoff, and takes nothing else with
it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from agent.intake import Input, Intake
from agent.metrics import Metrics

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0

log = structlog.get_logger("agent")


class Switch:
    """Turns one part off and on again while the agent runs."""

    def __init__(self) -> None:
        self._on = True
        self._stop = asyncio.Event()
        self._turned = asyncio.Event()

    def turn(self, on: bool) -> None:
        """Let the part run, or end it in order."""
        if on != self._on:
            self._on = on
            self._turned.set()
            if not on:
                self._stop.set()

    async def run(self, part: Callable[[asyncio.Event], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Run `part` while this is on; it is handed an event that is set when it shall end. Ends once
        `stopping` is set and the part has ended."""
        while not stopping.is_set():
            self._turned.clear()
            if self._on:
                self._stop = asyncio.Event()
                relay = asyncio.create_task(_relay(stopping, self._stop))
                try:
                    await part(self._stop)
                finally:
                    relay.cancel()
            await _either(self._turned, stopping)


async def _relay(one: asyncio.Event, other: asyncio.Event) -> None:
    await one.wait()
    other.set()


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def keep_running(one: Input, intake: Intake, stopping: asyncio.Event, metrics: Metrics) -> None:
    """Run an input until it has ended, and again when it fails while `stopping` is not set."""

    async def run() -> None:
        metrics.input_up.labels(one.name).set(1)
        try:
            await one.run(intake, stopping)
        finally:
            metrics.input_up.labels(one.name).set(0)

    await _again(run, stopping, "input", one.name)


async def keep_serving(name: str, service: Callable[[], Awaitable[Any]]) -> None:
    """Run a service beside the publish path until it has ended or this is cancelled, and again when it
    fails."""
    await _again(service, asyncio.Event(), "service", name)


async def _again(run: Callable[[], Awaitable[Any]], stopping: asyncio.Event, kind: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    failures, complaint = 0, ""
    while not stopping.is_set():
        began = loop.time()
        try:
            await run()
            return
        except Exception as error:  # whatever it fails with is its own
            if stopping.is_set():
                log.warning(f"{kind} failed while it was stopping", **{kind: name}, error=str(error))
                return
            if loop.time() - began > _STEADY_SECONDS:
                failures, complaint = 0, ""
            text = f"{type(error).__name__}: {error}"
            if text != complaint:
                log.error(f"{kind} failed and is started again", **{kind: name}, exc_info=error)
            complaint = text
        try:
            async with asyncio.timeout(min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10))):
                await stopping.wait()
            return
        except TimeoutError:
            failures += 1
