"""An event loop whose time passes only while nothing is left to do: what waits a minute takes no time, and
the same course gives the same run."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agent.base import wait

Result = TypeVar("Result")
_TICK = 0.001


class _Selector(selectors.DefaultSelector):
    """Waits for nobody: what would have been waited is added to `now`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.each_turn: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> Any:
        self.each_turn()
        if timeout is None:
            raise AssertionError("all tasks wait for something that nobody will do")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualClock:
    """A loop with a clock of its own (seconds)."""

    def __init__(self) -> None:
        self._selector = _Selector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self.loop.time = lambda: self._selector.now  # type: ignore[method-assign]
        wait._clock = self.loop.time
        self._failed: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self._failed.append(context))

    @property
    def now(self) -> float:
        """The loop's time."""
        return self._selector.now

    def each_turn(self, look: Callable[[], None]) -> None:
        """Call this between any two turns of the loop."""
        self._selector.each_turn = look

    def run(self, what: Coroutine[Any, Any, Result]) -> Result:
        """Run this to its end."""
        result = self.loop.run_until_complete(what)
        assert not self._failed, self._failed
        return result

    def spawn(self, what: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin this; it goes on whenever time passes."""
        return self.loop.create_task(what)

    def passes(self, seconds: float = 0.0) -> None:
        """Let so much time pass, and whatever can go on without more of it."""
        if seconds:
            self.run(asyncio.sleep(seconds))
        self.run(asyncio.sleep(_TICK))

    def close(self) -> None:
        """End every task and the loop."""
        self.each_turn(lambda: None)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
        wait._clock = time.monotonic
