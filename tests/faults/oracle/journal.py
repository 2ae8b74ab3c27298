"""What was sent and what was acknowledged, as the devices themselves noted it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.faults.oracle.numbered import Series


class Level(StrEnum):
    """What the sender of a series was promised with an acknowledgement."""

    ACCEPTED = "accepted"
    STORED = "stored"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class Made:
    """What is made of the readings of a series on their way, on purpose: a `suffix` of their metrics, `tags`
    that are added, a metric of which all are `dropped`, a `deadband` within which they are left out."""

    suffix: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    dropped: str = ""
    deadband: float | None = None


@dataclass(slots=True)
class Sent:
    """A series: its device sends one request after the other, each until it is answered, so what was
    acknowledged are the first `acknowledged` readings, and what may have arrived the first `sent`."""

    level: Level = Level.STORED
    sent: int = 0
    acknowledged: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    """Of readings that are messages themselves: where in the leaf's stream they were acknowledged."""
    made: Made = field(default_factory=Made)
    repeated: set[int] = field(default_factory=set)
    """Readings that were sent again because no answer came, by a sender whom nothing tells apart from another
    after a store was lost, or never where it is `at_least_once`."""
    at_least_once: bool = False
    unknown: set[int] = field(default_factory=set)
    """Readings of which the answer said that nobody can tell any more whether they are held."""
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

    def requests(self) -> list[tuple[int, int]]:
        """The first number of each request, and its time."""
        return list(zip(self._firsts, self._times, strict=True))

    def at(self, ts_us: int) -> int:
        """The number of the reading with this time, 0 where none has it."""
        at = bisect_right(self._times, ts_us) - 1
        if at < 0:
            return 0
        n = self._firsts[at] + ts_us - self._times[at]
        beyond = self._firsts[at + 1] if at + 1 < len(self._firsts) else self.sent + 1
        return n if n < beyond else 0


@dataclass(slots=True)
class Journal:
    """All series of a load."""

    series: dict[Series, Sent] = field(default_factory=dict)

    def of(self, one: Series, level: Level = Level.STORED, made: Made | None = None) -> Sent:
        """The series, a new one at this level where there is none yet."""
        return self.series.setdefault(one, Sent(level, made=made or Made()))

    @property
    def sent(self) -> int:
        """Readings that were sent."""
        return sum(one.sent for one in self.series.values())

    @property
    def acknowledged(self) -> int:
        """Readings that were acknowledged."""
        return sum(one.acknowledged for one in self.series.values())
