"""The account of what was let in: every reading is stored, refused, dead, or still in flight. Each count is
kept where it happens, and what is in flight is counted by walking what is held, so that a reading which is
dropped or settled twice shows. Pure but for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import prometheus_client

from agent.base.metrics import Metrics
from agent.leaf.intake import RefusedError


class ReadingAccounts:
    """The counts of one run by class. `held(cls)` walks what is in flight."""

    def __init__(self, metrics: Metrics, classes: Iterable[str], held: Callable[[str], int]) -> None:
        self._metrics, self._held = metrics, held
        self._counters: dict[tuple[str, str], prometheus_client.Counter] = {}
        self._accepted: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._refused_late: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        for cls in classes:
            metrics.unaccounted.labels(cls).set_function(partial(self.unaccounted, cls))

    def unaccounted(self, cls: str) -> int:
        """Accepted readings of a class of which nobody knows what became of them: 0 unless the agent is
        wrong."""
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
