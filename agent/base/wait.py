"""Waits with timeouts and cancellation, delays, bounded parallelism, and pacing of long work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Final, TypeVar

SPAN: Final = 0.005
"""Seconds of work between turns of the loop."""
_UNDER_WAY: Final = 32

T = TypeVar("T")
Item = TypeVar("Item")


_clock = time.monotonic
"""The clock of asyncio and uvloop loops."""


def loop_time() -> float:
    """Return the loop's monotonic seconds without the system call of asking the loop."""
    return _clock()


def timeout(seconds: float | None) -> Timeout:
    """`asyncio.timeout`, valid in an earlier cancelled task."""
    return Timeout(asyncio.timeout(seconds))


def timeout_at(deadline: float | None) -> Timeout:
    """`asyncio.timeout_at`, valid in an earlier cancelled task."""
    return Timeout(asyncio.timeout_at(deadline))


class Timeout:
    """Raises `TimeoutError` at its limit.

    `asyncio.Timeout` up to Python 3.11.2 (Debian 12) raises `CancelledError` in a task that was cancelled
    earlier (fixed in 3.11.3). Remove when 3.12 is the oldest Python.
    """

    __slots__ = ("_before", "_limit", "_task")

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit

    async def __aenter__(self) -> asyncio.Timeout:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before = task, task.cancelling()
        return await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._limit.__aexit__(kind, error, trace)
        expired = kind is asyncio.CancelledError and self._limit.expired()
        if expired and self._task.cancelling() <= self._before:
            raise TimeoutError from error


async def event_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event up to so many seconds (None: unlimited); returns whether it was set."""
    try:
        async with timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def unless(stopping: asyncio.Event, awaited: Coroutine[Any, Any, T]) -> T | None:
    """Await a coroutine until `stopping`; then cancel it and return None."""
    task, stop = asyncio.ensure_future(awaited), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stop.cancel()


_MOST_DOUBLINGS: Final = 64


class Backoff:
    """Doubling delays in seconds from `first` to `longest`. With `steady`, a longer attempt resets them."""

    def __init__(self, first: float, longest: float, steady: float | None = None) -> None:
        self._first, self._longest, self._steady = first, longest, steady
        self._began = 0.0 if steady is None else loop_time()
        self.failures = 0
        """How many delays were given since the last success."""

    def next(self) -> float:
        """Return the delay after a failure."""
        if self._steady is not None and loop_time() - self._began > self._steady:
            self.reset()
        delay = min(self._longest, self._first * 2.0 ** min(self.failures, _MOST_DOUBLINGS))
        self.failures += 1
        if self._steady is not None:
            self._began = loop_time() + delay
        return delay

    def reset(self) -> None:
        """Note a success."""
        self.failures = 0


async def bounded_gather(ask: Callable[[Item], Awaitable[T]], items: Iterable[Item]) -> list[T]:
    """Return results of `ask` in order, at most 32 at once. An error cancels the others."""
    waiting = list(items)
    if len(waiting) < 2:  # no task is needed; most leaves have one class
        return [await ask(item) for item in waiting]
    numbered, results = iter(enumerate(waiting)), dict[int, T]()

    async def ask_in_turn() -> None:
        # Not a task for each: to make ten thousand holds up the loop.
        for number, item in numbered:
            results[number] = await ask(item)

    asking = [asyncio.ensure_future(ask_in_turn()) for _ in range(min(len(waiting), _UNDER_WAY))]
    try:
        await asyncio.gather(*asking)
    finally:
        for task in asking:
            task.cancel()
    return [results[number] for number in range(len(waiting))]


async def paced(items: Iterable[T]) -> list[T]:
    """Return a generator's items, yielding to the loop."""
    made, pacer = [], Pacer()
    for item in items:
        made.append(item)
        await pacer.give_way()
    return made


class Pacer:
    """Yields to the event loop during long work."""

    def __init__(self) -> None:
        self._due = time.perf_counter() + SPAN

    async def give_way(self) -> None:
        """Yield if `SPAN` has passed; call after each piece."""
        if time.perf_counter() >= self._due:
            await asyncio.sleep(0)
            self._due = time.perf_counter() + SPAN
