"""Settles chunks and wakes their waiters: tasks and callbacks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from agent.leaf.intake import Settled


class Answers:
    """Delivers outcomes to callbacks, all of one loop turn together, since a callback may submit again."""

    def __init__(self) -> None:
        self._due: deque[tuple[Settled, Exception | None]] = deque()

    def add(self, settled: Settled, outcome: Exception | None) -> None:
        self._due.append((settled, outcome))
        if len(self._due) == 1:
            self._tell_soon()

    def _tell_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        try:
            while self._due:
                settled, outcome = self._due.popleft()
                settled(outcome)
        finally:
            if self._due:  # one of them raised
                self._tell_soon()


class PendingAnswer:
    """A wait without a task: `settled` is called once with the outcome, and `give_up` finds it at the
    deadline. To `Settlement` and `Deadlines` it is what a future is."""

    __slots__ = ("_answers", "_give_up", "_settled")

    def __init__(self, answers: Answers, settled: Settled, give_up: Callable[[], Exception | None]) -> None:
        self._answers = answers
        self._settled: Settled | None = settled
        self._give_up: Callable[[], Exception | None] | None = give_up

    def done(self) -> bool:
        """Whether the outcome was said."""
        return self._settled is None

    def set_result(self, outcome: Exception | None) -> None:
        """Say the outcome. What was handed in is let go, for `Deadlines` keeps this a while longer."""
        assert self._settled is not None
        settled, self._settled, self._give_up = self._settled, None, None
        self._answers.add(settled, outcome)

    def set_exception(self, _: TimeoutError) -> None:
        """The deadline has passed."""
        assert self._give_up is not None
        outcome = self._give_up()
        if not self.done():  # to give up may settle the chunk
            self.set_result(outcome)


Wait = asyncio.Future[Exception | None] | PendingAnswer


class Settlement:
    """A chunk's outcome (None: stored) for several waiters: senders and repeats."""

    __slots__ = ("_done", "_outcome", "_waits")

    def __init__(self) -> None:
        self._done = False
        self._outcome: Exception | None = None
        self._waits: list[Wait] = []

    def done(self) -> bool:
        return self._done

    def result(self) -> Exception | None:
        assert self._done
        return self._outcome

    def set_result(self, outcome: Exception | None) -> None:
        """Set the outcome once for all waiters."""
        assert not self._done
        self._done, self._outcome = True, outcome
        for wait in self._waits:
            if not wait.done():
                wait.set_result(outcome)
        self._waits.clear()

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Exception | None]:
        """Return a separate future for the outcome."""
        wait: asyncio.Future[Exception | None] = loop.create_future()
        self._waits.append(wait)
        return wait

    def answer(self, answer: PendingAnswer) -> None:
        """Add a callback for the outcome."""
        self._waits.append(answer)

    def leave(self, wait: asyncio.Future[Exception | None]) -> None:
        """Remove an abandoned wait, which would keep its chunk alive."""
        if wait in self._waits:
            self._waits.remove(wait)


class Deadlines:
    """Ends overdue waits by `TimeoutError`, polled because timers cost more."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, Wait]] = deque()

    def add(self, deadline: float, wait: Wait) -> None:
        """Add a deadline in monotonic seconds; most come in order."""
        waits, at = self._waits, len(self._waits)
        while at and waits[at - 1][0] > deadline:
            at -= 1
        waits.insert(at, (deadline, wait))

    def sweep(self, now: float) -> None:
        """End overdue waits, and drop ended ones at the front."""
        waits = self._waits
        while waits and (waits[0][1].done() or waits[0][0] <= now):
            wait = waits.popleft()[1]
            if not wait.done():
                wait.set_exception(TimeoutError())
