"""Drives one input of a leaf under test."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from agent.testing.agent_process import AgentProcess, wait_for
from agent.testing.input_case import InputCase, Verdict, judge
from agent.testing.stored_stream import numbers_in, stored_readings


class InputProbe:
    """Submits readings, and checks the agent's metrics and stream."""

    def __init__(self, leaf: AgentProcess, case: InputCase, cls: str) -> None:
        self.leaf = leaf
        self.case = case
        self.cls = cls
        self.sent = 0
        """Numbers submitted so far, including pending offers."""

    def metric(self, name: str, **labels: str) -> float:
        return self.leaf.metric(name, input=self.case.name, **labels)

    def stored(self) -> float:
        return self.metric("petiole_stored_readings_total")

    def accepted(self) -> float:
        """Return accepted readings without added ones."""
        rows = stored_readings(self.leaf.member, self.cls) if self.case.adds else []
        added = sum(row["metric"] in self.case.adds for row in rows)
        dead = self.metric("petiole_dead_readings_total")
        return self.metric("petiole_accepted_readings_total") - dead - added

    def is_refused(self) -> bool:
        return self.metric("petiole_refused_readings_total", reason="stream_full") > 0

    def numbers(self) -> Counter[float]:
        return numbers_in(self.leaf.member, self.cls)

    def missing(self) -> list[int]:
        return judge(self.numbers(), self.sent).lost

    def wait(self, holds: Callable[[], bool], condition: str) -> None:
        wait_for(holds, f"{self.case.name}: {condition}")

    def wait_stored(self, above: float = 0) -> None:
        self.wait(lambda: self.stored() > above, f"more than {above:.0f} readings are stored")

    def offer(self, count: int) -> None:
        self.offering(count).join()

    def offering(self, count: int) -> threading.Thread:
        """Submit numbers in a thread; join it."""
        offer = self.case.offer or (lambda _leaf, _numbers: None)
        thread = threading.Thread(target=offer, args=(self.leaf, range(self.sent, self.sent + count)))
        self.sent += count
        thread.start()
        return thread

    def refuse(self, bad: bytes, reason: str) -> None:
        """Submit invalid data and wait until counted."""
        assert self.case.send is not None, "a case with bad has a send"
        assert self.case.offer is not None, "a case with bad has an offer"
        invalid = partial(self.metric, "petiole_invalid_requests_total", reason=reason)
        before = invalid()
        self.case.send(self.leaf, bad)
        self.wait(lambda: invalid() > before, f"it is counted as {reason}")

    def has_each_once(self) -> None:
        """Check that everything is stored once."""
        if self.case.offer is None:
            rows = stored_readings(self.leaf.member, self.cls)
            seen = Counter((row["ts"], row["metric"], str(row.get("tags"))) for row in rows)
            assert seen, f"{self.case.name}: nothing is stored"
            doubled = [row for row, times in seen.items() if times > 1]
            assert not doubled, f"{self.case.name}: doubled: {doubled}"
            return
        self.wait(lambda: not self.missing(), f"all {self.sent} readings are stored")
        assert judge(self.numbers(), self.sent) == Verdict([], [], []), self.case.name

    def losses(self) -> str:
        """Return the losses after an abrupt end, in words."""
        if self.case.acknowledges or self.case.offer is None:
            self.has_each_once()
            return ""
        self.wait(lambda: self.sent - 1 in self.numbers(), "the reading that was sent last is stored")
        verdict = judge(self.numbers(), self.sent)
        assert (verdict.doubled, verdict.strange) == ([], []), (self.case.name, verdict)
        lost = f"{len(verdict.lost)} of {self.sent} readings are lost"
        return f"{self.case.name} does not acknowledge: {lost}" if verdict.lost else ""
