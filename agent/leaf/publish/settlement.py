"""The outcome of a chunk and those who wait for it: tasks, and answers that need none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from agent.leaf.intake import Settled


class Answers:
    """Says outcomes to senders that no task waits for, those of one turn of the event loop together. A sender
    may hand in more then, so none hears of its chunk while others of the same batch are being settled."""

    def __init__(self) -> None:
        self._due: deque[tuple[Settled, Exception | None]] = deque()

    def add(self, settled: Settled, outcome: Exception | None) -> None:
        """Say an outcome, soon."""
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
    """The outcome of one chunk: None for stored, or why it is not, or not known to be. Several may wait for
    it, the senders of one request and its repeats; one that gives up takes nothing from the others."""

    __slots__ = ("_done", "_outcome", "_waits")

    def __init__(self) -> None:
        self._done = False
        self._outcome: Exception | None = None
        self._waits: list[Wait] = []

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._done

    def result(self) -> Exception | None:
        """The outcome, once it is known."""
        assert self._done
        return self._outcome

    def set_result(self, outcome: Exception | None) -> None:
        """Say the outcome, once, to all that wait."""
        assert not self._done
        self._done, self._outcome = True, outcome
        for wait in self._waits:
            if not wait.done():
                wait.set_result(outcome)
        self._waits.clear()

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Exception | None]:
        """A wait of its own for an outcome that is not known yet."""
        wait: asyncio.Future[Exception | None] = loop.create_future()
        self._waits.append(wait)
        return wait

    def answer(self, answer: PendingAnswer) -> None:
        """Let an answer have an outcome that is not known yet."""
        self._waits.append(answer)

    def leave(self, wait: asyncio.Future[Exception | None]) -> None:
        """Forget a wait that was given up: a sender that repeats a request waits again and again while the
        server is unreachable, and each wait holds on to what was handed in."""
        if wait in self._waits:
            self._waits.remove(wait)


class Deadlines:
    """Ends waits that have lasted too long with `TimeoutError`. They are looked at now and then, for a timer
    each would cost more than all the rest of a wait; so one may last for that much longer."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, Wait]] = deque()

    def add(self, deadline: float, wait: Wait) -> None:
        """End a wait at a deadline, in monotonic seconds. Nearly all deadlines come in their order: only who
        waited for room in memory comes behind those who repeat what is in flight."""
        waits, at = self._waits, len(self._waits)
        while at and waits[at - 1][0] > deadline:
            at -= 1
        waits.insert(at, (deadline, wait))

    def sweep(self, now: float) -> None:
        """End the waits whose deadline has passed, and forget those at the front that have ended."""
        waits = self._waits
        while waits and (waits[0][1].done() or waits[0][0] <= now):
            wait = waits.popleft()[1]
            if not wait.done():
                wait.set_exception(TimeoutError())
