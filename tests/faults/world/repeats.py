"""Devices that repeat under their keys what was answered, as a client does that missed the answer."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from agent.demo.plan import Member
from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import Series
from tests.faults.world.devices import HttpDevice, Notes


class Repeater(HttpDevice):
    """Sends each request `again` so many times once it was acknowledged, under its key."""

    again = 2

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(member, series, sent, notes, 10, 0.05)
        self.repeated = 0
        """Repeats that were acknowledged."""

    def _insist(self, numbers: range) -> bool:
        if not super()._insist(numbers):
            return False
        for _ in range(self.again):
            if not super()._insist(numbers):
                return False
            self.repeated += 1
        return True

    def trace(self, _since: float) -> str | None:
        """What was seen of the repeats."""
        return f"{self.repeated} repeats were acknowledged" if self.repeated else None


class Hoarder(Repeater):
    """Repeats nothing by itself, but all that was ever acknowledged when it is told to."""

    again = 0

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(member, series, sent, notes)
        self._member = member
        self._answered: list[range] = []

    def _insist(self, numbers: range) -> bool:
        done = super()._insist(numbers)
        if done:
            self._answered.append(numbers)
        return done

    def repeat_all(self) -> list[str]:
        """Send everything again, over a connection of its own; the answers that are no acknowledgement."""
        wrong, hand = [], _Hand(self._member, self.series, self.sent, self.notes)
        for numbers in list(self._answered):
            answer = hand.post(self.key(numbers), b"".join(self.lines(numbers)))
            if answer is None or answer[0] not in (202, 204):
                wrong.append(f"{self.key(numbers)}: {answer}")
            else:
                self.repeated += 1
        hand.hang_up()
        return wrong


class ManyHanded(HttpDevice):
    """Sends each request over several connections at once, and again until all of them are acknowledged."""

    hands = 4

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(member, series, sent, notes, 10, 0.05)
        self._hands = [_Hand(member, series, sent, notes) for _ in range(self.hands)]
        self.together = 0
        """Requests that were acknowledged on every connection in the same round."""

    def run(self) -> None:
        with ThreadPoolExecutor(self.hands) as self._pool:
            super().run()
        for one in self._hands:
            one.hang_up()

    def _attempt(self, numbers: range) -> float | None:
        waits = list(self._pool.map(lambda hand: hand.attempt(numbers), self._hands))
        left = [one for one in waits if one is not None]
        self.together += not left
        return max(left, default=None)

    def trace(self, _since: float) -> str | None:
        """What was seen of the repeats."""
        if not self.together:
            return None
        return f"{self.together} requests were acknowledged on {self.hands} connections at once"


class Forger(Repeater):
    """Sends after each request another one under its key."""

    again = 0

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(member, series, sent, notes)
        self.refused = 0
        """Such requests that were refused as what they are."""
        self.other: list[str] = []
        """Other answers to them."""

    def _insist(self, numbers: range) -> bool:
        done = super()._insist(numbers)
        if done:
            line = json.loads(self.lines(numbers)[0]) | {"value": "forged"}
            answer = self.post(self.key(numbers), json.dumps(line).encode() + b"\n")
            if answer is not None and answer[0] == 422:
                self.refused += 1
            elif answer is not None:
                self.other.append(str(answer))
        return done

    def trace(self, _since: float) -> str | None:
        """What was seen of the refusals."""
        return f"{self.refused} requests were answered 422" if self.refused else None


class _Hand(HttpDevice):
    """One connection; it is never started as a device."""

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes) -> None:
        super().__init__(member, series, sent, notes, 10, 0.05)

    def attempt(self, numbers: range) -> float | None:
        return self._attempt(numbers)

    def hang_up(self) -> None:
        self._hang_up()
