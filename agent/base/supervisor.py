"""Keeping parts running: what fails is told once, started again with backoff, and takes nothing else with
it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from agent.base.errors import ConditionError

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0
_SETTLED_SECONDS = 5.0
"""After so long a part that had failed is said to run again."""

CONDITIONS = (OSError, ConditionError)
"""What says that something on this machine is missing, in words: a port, a file, room on the disk."""

Made = TypeVar("Made")

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


async def keep_serving(
    name: str, service: Callable[[], Awaitable[Any]], stopping: asyncio.Event | None = None
) -> None:
    """Run a service beside the publish path until it has ended or this is cancelled, and again when it
    fails while `stopping` is not set."""
    await _again(service, stopping or asyncio.Event(), "service", name)


async def until_made(
    make: Callable[[], Made], stopping: asyncio.Event, waiting: Callable[[str], None]
) -> Made | None:
    """What `make` returns, tried again while something on this machine is missing for it; `waiting` hears
    what, whenever that is another thing. None when `stopping` is set before."""
    failures, complaint = 0, ""
    while not stopping.is_set():
        try:
            return make()
        except CONDITIONS as error:
            if str(error) != complaint:
                complaint = str(error)
                waiting(complaint)
        await _pause(stopping, failures)
        failures += 1
    return None


async def _again(run: Callable[[], Awaitable[Any]], stopping: asyncio.Event, kind: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    failures, complaint = 0, ""
    while not stopping.is_set():
        began = loop.time()
        settled = loop.call_later(_SETTLED_SECONDS, partial(_settled, kind, name, complaint))
        try:
            await run()
            return
        except Exception as error:  # whatever it fails with is its own
            if stopping.is_set():
                log.warning(f"{kind} failed while it was stopping", **{kind: name}, error=str(error))
                return
            lasted = loop.time() - began
            failures = 0 if lasted > _STEADY_SECONDS else failures
            complaint = "" if lasted > _SETTLED_SECONDS else complaint
            complaint = _complain(kind, name, error, complaint)
        finally:
            settled.cancel()
        await _pause(stopping, failures)
        failures += 1


async def _pause(stopping: asyncio.Event, failures: int) -> None:
    """Wait before the next attempt, or until `stopping` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(failures, 10))):
            await stopping.wait()


def _complain(kind: str, name: str, error: Exception, before: str) -> str:
    """Log why a part failed, unless that was said `before`. Returns what was said."""
    text = f"{type(error).__name__}: {error}"
    if text != before:
        reason = text if isinstance(error, OSError) else str(error)
        words = {"reason": reason} if isinstance(error, CONDITIONS) else {"exc_info": error}
        log.error(f"{kind} failed and is retried", **{kind: name}, **words)
    return text


def _settled(kind: str, name: str, complaint: str) -> None:
    if complaint:
        log.info(f"{kind} runs again", **{kind: name})
