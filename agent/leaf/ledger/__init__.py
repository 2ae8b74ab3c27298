"""What the agent accounts for: how many readings it acknowledged, under which batches, and what became of
them.

Here are the counts of one run. `ClassLedger` is what the records publish; it is pure. `ReadingAccounts`
checks the agent itself: every reading is stored, refused, dead, or still in flight. It counts each where it
happens, and what is in flight by walking what is held, so that a reading which is dropped or settled twice
shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import prometheus_client

from agent.base.metrics import Metrics
from agent.contract import Doubt, Ledger, LostStream, Previous, Readings, StreamState
from agent.contract.ranges import RangeSet
from agent.leaf.intake import RefusedError

MAX_RANGES = 2_000
"""Ranges that a class keeps, and so a record names: about 60 KB. A stream that is full by turns for days
would make more of them than a message can hold."""

Discarded = tuple[tuple[int, int, int, str], ...]


class ClassLedger:
    """Counts of one class in this run. A batch has a number from the moment it is first sent."""

    def __init__(self, domain: str, cls: str, run: str) -> None:
        self._domain, self._cls, self._run = domain, cls, run
        self._stored = RangeSet()
        self._refused: dict[str, RangeSet] = {}
        self._readings = {"accepted": 0, "stored": 0, "refused": 0, "dead": 0, "refused_late": 0}
        self._discarded: Discarded = ()
        self.gone: Discarded = ()
        self.n = 0
        self.previous: Previous | None = None
        self.lost: tuple[LostStream, ...] = ()
        self.doubts: tuple[Doubt, ...] = ()

    def accept(self, readings: int) -> None:
        """Readings were acknowledged as accepted before they were given a number."""
        self._readings["accepted"] += readings

    def number(self, readings: int) -> int:
        """Give the next batch its number; `readings` of it are accepted with that."""
        self.n += 1
        self._readings["accepted"] += readings
        return self.n

    def store(self, n: int, readings: int) -> None:
        """Batch `n` was acknowledged."""
        self._stored.add(n)
        self._bound()
        self._readings["stored"] += readings

    def store_dead(self, n: int, letters: int) -> None:
        """Message `n`, which holds dead letters, was acknowledged."""
        self._stored.add(n)
        self._bound()
        self._readings["dead"] += letters

    def omit(self, letters: int) -> None:
        """Dead letters came that are in no message, for there were too many."""
        self._readings["accepted"] += letters
        self._readings["dead"] += letters

    def refuse(self, n: int, readings: int, reason: str, late: int = 0) -> None:
        """Batch `n` is not stored and will not be; `late` of its readings were acknowledged as accepted
        before."""
        self._refused.setdefault(reason, RangeSet()).add(n)
        self._bound()
        self._readings["refused"] += readings
        self._readings["refused_late"] += late

    def discard(self, batches: Discarded, readings: int, gone: Discarded) -> None:
        """This is what has been discarded so far: batches of this run with the sum of their readings, and
        sequences of the stream, as `contract.Ledger` says."""
        self._discarded, self.gone = batches, gone
        self._readings["discarded"] = readings

    def _bound(self) -> None:
        # What is left stays true: a number that is dropped is not said to be anything, and its readings
        # stand in the counts. A refused one goes first, for its sender knows.
        if len(self._stored) + sum(map(len, self._refused.values())) <= MAX_RANGES:
            return
        refused = [numbers for numbers in self._refused.values() if len(numbers)]
        min(refused, key=lambda numbers: numbers.lowest, default=self._stored).drop_lowest()

    @property
    def readings(self) -> Readings:
        return Readings(**self._readings)

    @property
    def highest_stored(self) -> int:
        """The highest batch number that was acknowledged, 0 before the first."""
        return self._stored.highest

    def record(self, stream: StreamState, *, final: bool = False) -> Ledger:
        return Ledger(
            domain=self._domain,
            cls=self._cls,
            run=self._run,
            n=self.n,
            stored=self._stored.ranges(),
            refused=tuple(_labelled(self._refused.items())),
            discarded=self._discarded,
            gone=self.gone,
            readings=self.readings,
            stream=stream,
            previous=self.previous,
            final=final,
            lost=self.lost,
            doubts=self.doubts,
        )


def _labelled(sets: Iterable[tuple[str, RangeSet]]) -> Iterable[tuple[int, int, str]]:
    return sorted((first, last, reason) for reason, numbers in sets for first, last in numbers.ranges())


class ReadingAccounts:
    """The counts of one run by class."""

    def __init__(self, metrics: Metrics, classes: Iterable[str]) -> None:
        self._metrics, self._classes = metrics, tuple(classes)
        self._counters: dict[tuple[str, str], prometheus_client.Counter] = {}
        self._accepted: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._refused_late: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._held: Callable[[str], int] = lambda _cls: 0

    def watch(self, held: Callable[[str], int]) -> None:
        """Show what is unaccounted as a metric; `held(cls)` counts what is in flight by walking it."""
        self._held = held
        for cls in self._classes:
            self._metrics.unaccounted.labels(cls).set_function(partial(self.unaccounted, cls))

    def unaccounted(self, cls: str) -> int:
        """Accepted readings of a class that are neither settled nor in flight: 0 unless there is a bug."""
        settled = self._stored[cls] + self._returned[cls] + self._refused_late[cls] + self._dead[cls]
        return self._accepted[cls] - settled - self._held(cls)

    def accept(self, key: tuple[str, str], count: int) -> None:
        """A chunk of `count` readings was let in."""
        self._accepted[key[1]] += count
        counter = self._counters.get(key)
        if counter is None:  # to look it up in the registry costs more than all the rest of this
            counter = self._counters[key] = self._metrics.accepted.labels(*key)
        counter.inc(count)

    def store(self, key: tuple[str, str], count: int, *, dead: bool) -> None:
        """The stream acknowledged a chunk, of readings or of dead letters."""
        settled = self._dead if dead else self._stored
        settled[key[1]] += count

    def refuse(
        self, key: tuple[str, str], count: int, refusal: RefusedError, *, admitted: bool, promised: bool
    ) -> None:
        """A chunk is not stored and will not be. `admitted`: it was let in before; `promised`: its sender has
        an acknowledgement of it."""
        labels = (*key, refusal.reason.value)
        if promised:
            self._refused_late[key[1]] += count
            self._metrics.refused_late.labels(*labels).inc(count)
            return
        self._metrics.refused.labels(*labels).inc(count)
        if admitted:
            self._returned[key[1]] += count
