"""What was sent and what was acknowledged, as the devices themselves noted it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum

from tests.faults.oracle.numbered import Series


class Level(StrEnum):
    """What the sender of a series was promised with an acknowledgement."""

    ACCEPTED = "accepted"
    STORED = "stored"
    HUB = "hub"


@dataclass(slots=True)
class Sent:
    """A series: its device sends one request after the other, each until it is answered, so what was
    acknowledged are the first `acknowledged` readings, and what may have arrived the first `sent`."""

    level: Level = Level.STORED
    sent: int = 0
    acknowledged: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    """Of readings that are messages themselves: where in the leaf's stream they were acknowledged."""
    _firsts: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)

    def request(self, count: int, ts_us: int) -> range:
        """The numbers of the next request, of `count` readings, whose first has this time and each further
        one a microsecond more."""
        first = self.sent + 1
        self._firsts.append(first)
        self._times.append(ts_us)
        self.sent += count
        return range(first, self.sent + 1)

    def answered(self) -> None:
        """All that was sent is acknowledged."""
        self.acknowledged = self.sent

    def ts_us(self, n: int) -> int:
        """The time of a reading, in microseconds since 1970."""
        at = bisect_right(self._firsts, n) - 1
        return self._times[at] + n - self._firsts[at]


@dataclass(slots=True)
class Journal:
    """All series of a load."""

    series: dict[Series, Sent] = field(default_factory=dict)

    def of(self, one: Series, level: Level = Level.STORED) -> Sent:
        """The series, a new one at this level where there is none yet."""
        return self.series.setdefault(one, Sent(level))

    @property
    def sent(self) -> int:
        """Readings that were sent."""
        return sum(one.sent for one in self.series.values())

    @property
    def acknowledged(self) -> int:
        """Readings that were acknowledged."""
        return sum(one.acknowledged for one in self.series.values())
