"""Every fault that was made, and the trace by which it is seen that it happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.report import Case

Trace = Callable[[float], str | None]
"""What was seen of a fault since it was made (epoch seconds), None as long as nothing was."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault; `at` in epoch seconds, as logs have it."""

    what: str
    at: float
    trace: Trace


class InjectedFaults:
    """All faults of a case, in their order."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.made: list[InjectedFault] = []
        self.observers: list[Trace] = []
        """Who may notice a fault: senders, and agents in their logs."""
        self.last = time.monotonic()
        """When the last of them was made or mended."""

    def add(self, what: str, trace: Trace) -> None:
        """A fault is there from now on."""
        if not self.made:
            self.case.begins()
        self.case.saw(what)
        self.made.append(InjectedFault(what, time.time(), trace))
        self.last = time.monotonic()

    def repaired(self, what: str) -> None:
        """Something was put right by hand."""
        self.case.saw(what)
        self.last = time.monotonic()

    def noticed(self, since: float) -> str | None:
        """What somebody noticed from a moment on."""
        return next(filter(None, (one(since) for one in self.observers)), None)

    def unseen(self) -> list[str]:
        """The faults of which no trace is found; what is seen of the others goes into the case."""
        missing = []
        for one in self.made:
            found = one.trace(one.at)
            if found is None:
                missing.append(one.what)
            else:
                self.case.seen.append(f'trace of "{one.what}": {found}')
        return missing
