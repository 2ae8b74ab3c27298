"""Runs parts, and restarts failed ones with backoff while others continue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from agent.base.logs import LogEdge
from agent.base.wait import Backoff, event_within, unless

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0
_SETTLED_SECONDS = 5.0
"""Running time after which a failure counts as over."""


class ConditionError(Exception):
    """A machine condition is missing; the text has reason, place and remedy. The part is retried, logged
    once.
    """


CONDITIONS = (OSError, ConditionError)
"""Errors that explain a missing condition: port, file, disk space."""

T = TypeVar("T")

log = structlog.get_logger("agent")


class Switch:
    """Stops and restarts one part."""

    def __init__(self) -> None:
        self._on = True
        self._stop = asyncio.Event()
        self._turned = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self._on

    def turn(self, on: bool) -> None:
        """Run the part, or stop it in order."""
        if on != self._on:
            self._on = on
            self._turned.set()
            if not on:
                self._stop.set()

    async def run(self, part: Callable[[asyncio.Event], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Run `part` while on, until `stopping`; its event is set to end it."""
        while not stopping.is_set():
            self._turned.clear()
            if self._on:
                self._stop = asyncio.Event()
                relay = asyncio.create_task(_relay(stopping, self._stop))
                try:
                    await part(self._stop)
                finally:
                    relay.cancel()
            await unless(stopping, self._turned.wait())


async def _relay(cause: asyncio.Event, other: asyncio.Event) -> None:
    await cause.wait()
    other.set()


async def keep_serving(
    name: str, service: Callable[[], Awaitable[Any]], stopping: asyncio.Event | None = None
) -> None:
    """Run a service until it ends or is cancelled, with restarts."""
    await restart_failing(service, stopping or asyncio.Event(), "service", name)


async def until_made(
    make: Callable[[], Awaitable[T]], stopping: asyncio.Event, waiting: Callable[[str], None]
) -> T | None:
    """Return the result of `make`, retried during missing conditions, each reported to `waiting`. None if
    `stopping`.
    """
    backoff, last = Backoff(_FIRST_DELAY, _LONGEST_DELAY), ""
    while not stopping.is_set():
        try:
            return await make()
        except CONDITIONS as error:
            if str(error) != last:
                last = str(error)
                waiting(last)
        await event_within(stopping, backoff.next())
    return None


async def restart_failing(
    run: Callable[[], Awaitable[Any]], stopping: asyncio.Event, kind: str, name: str
) -> None:
    """Run a part until it ends, with restarts until `stopping`. `kind` and `name` are logged."""
    loop, logger = asyncio.get_running_loop(), log.bind(**{kind: name})
    fault = LogEdge(logger, f"{kind} runs again", error=True)
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, _STEADY_SECONDS)
    while not stopping.is_set():
        settled = loop.call_later(_SETTLED_SECONDS, fault.end)
        try:
            # A task of its own: a `TaskGroup` that fails leaves the task in which it ran marked as cancelled
            # (Python before 3.13, `TaskGroup.__aexit__`), and this task must know whether it is.
            error = await asyncio.create_task(_attempt(run))
        finally:
            settled.cancel()
        if error is None:
            return
        cancelled = _is_cancelled()
        if cancelled and isinstance(error, asyncio.CancelledError):
            raise error
        if cancelled or stopping.is_set():
            logger.warning(f"{kind} failed while it was stopping", error=_text(error))
            if cancelled:
                raise asyncio.CancelledError
            return
        text = _text(error)
        if isinstance(error, CONDITIONS):
            reason = text if isinstance(error, OSError) else str(error)
            fault.begin(f"{kind} failed and is retried", reason=reason)
        else:
            fault.begin(f"{kind} failed and is retried", error=text, exc_info=error)
        del error  # and not what its frames hold for as long as the next run lasts
        await event_within(stopping, backoff.next())


async def _attempt(run: Callable[[], Awaitable[Any]]) -> BaseException | None:
    """Run a part once and return its error. Catches a part's own `CancelledError` and panics of Rust
    libraries.
    """
    try:
        await run()
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return error
    return None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
