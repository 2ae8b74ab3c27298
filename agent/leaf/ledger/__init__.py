"""Counts acknowledged readings, their batches and outcomes for one run.

`ClassLedger` (pure) is published in ledger records. `ReadingAccounts` checks that every reading is stored,
refused, dead or in flight, and so reveals readings dropped or settled twice.
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
from agent.leaf.ledger.chain import BatchChain

MAX_RANGES = 2_000
"""Ranges per class in a record, about 60 KB; a long full stream would make more."""

Discarded = tuple[tuple[int, int, int, str], ...]


class ClassLedger:
    """Counts of one class in this run. Batches are numbered at their first sending."""

    def __init__(self, domain: str, cls: str, run: str) -> None:
        self._domain, self._cls, self._run = domain, cls, run
        self._stored = RangeSet()
        self._refused: dict[str, RangeSet] = {}
        self._readings = {"accepted": 0, "stored": 0, "refused": 0, "dead": 0, "refused_late": 0}
        self._discarded: Discarded = ()
        self.chain = BatchChain(domain, cls, run)
        self.gone: Discarded = ()
        self.n = 0
        self.previous: Previous | None = None
        self.lost: tuple[LostStream, ...] = ()
        self.doubts: tuple[Doubt, ...] = ()

    def accept(self, readings: int) -> None:
        """Count readings acknowledged as accepted before numbering."""
        self._readings["accepted"] += readings

    def number(self, readings: int) -> int:
        """Number the next batch; `readings` more are accepted with it."""
        self.n += 1
        self._readings["accepted"] += readings
        return self.n

    def store(self, n: int, readings: int) -> None:
        """Count an acknowledged batch."""
        self._stored.add(n)
        self._bound()
        self._readings["stored"] += readings

    def store_dead(self, n: int, letters: int) -> None:
        """Count an acknowledged message of dead letters."""
        self._stored.add(n)
        self._bound()
        self._readings["dead"] += letters

    def omit(self, letters: int) -> None:
        """Count dead letters beyond the limit."""
        self._readings["accepted"] += letters
        self._readings["dead"] += letters

    def refuse(self, n: int, readings: int, reason: str, late: int = 0) -> None:
        """Count a refused batch; `late` readings were acknowledged as accepted before."""
        self._refused.setdefault(reason, RangeSet()).add(n)
        self.chain.skip(n)
        self._bound()
        self._readings["refused"] += readings
        self._readings["refused_late"] += late

    def discard(self, batches: Discarded, readings: int, gone: Discarded) -> None:
        """Set everything discarded so far: batches with readings, and stream sequences, as in
        `contract.Ledger`.
        """
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
        """Highest acknowledged batch number, 0 for none."""
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
    """Counts of one run by class."""

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
        """Expose unaccounted readings as a metric; `held(cls)` counts those in flight."""
        self._held = held
        for cls in self._classes:
            self._metrics.unaccounted.labels(cls).set_function(partial(self.unaccounted, cls))

    def unaccounted(self, cls: str) -> int:
        """Return accepted readings neither settled nor in flight; nonzero is a bug."""
        settled = self._stored[cls] + self._returned[cls] + self._refused_late[cls] + self._dead[cls]
        return self._accepted[cls] - settled - self._held(cls)

    def accept(self, key: tuple[str, str], count: int) -> None:
        """Count an admitted chunk."""
        self._accepted[key[1]] += count
        counter = self._counters.get(key)
        if counter is None:  # to look it up in the registry costs more than all the rest of this
            counter = self._counters[key] = self._metrics.accepted.labels(*key)
        counter.inc(count)

    def store(self, key: tuple[str, str], count: int, *, dead: bool) -> None:
        """Count a stored chunk of readings or dead letters."""
        settled = self._dead if dead else self._stored
        settled[key[1]] += count

    def refuse(
        self, key: tuple[str, str], count: int, refusal: RefusedError, *, admitted: bool, promised: bool
    ) -> None:
        """Count a refused chunk: `admitted` before, `promised` to its sender."""
        labels = (*key, refusal.reason.value)
        if promised:
            self._refused_late[key[1]] += count
            self._metrics.refused_late.labels(*labels).inc(count)
            return
        self._metrics.refused.labels(*labels).inc(count)
        if admitted:
            self._returned[key[1]] += count
