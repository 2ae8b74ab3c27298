"""The account of what was let in: every reading is stored, refused, dead, or still in flight. Each count is
kept where it happens, and what is in flight is counted by walking what is held, so that a reading which is
dropped or settled twice shows. Pure but for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import prometheus_client

from agent.base.metrics import Metrics
from agent.leaf.intake import RefusedError
from agent.leaf.publish.accumulator import Entry


class Balance:
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

    def accept(self, key: tuple[str, str], entry: Entry[Any]) -> None:
        """A chunk was let in."""
        entry.admitted = True
        self._accepted[key[1]] += entry.chunk.count
        counter = self._counters.get(key)
        if counter is None:  # to look it up in the registry costs more than all the rest of this
            counter = self._counters[key] = self._metrics.accepted.labels(*key)
        counter.inc(entry.chunk.count)

    def store(self, key: tuple[str, str], entry: Entry[Any]) -> None:
        """A chunk was acknowledged by the stream."""
        settled = self._dead if entry.chunk.dead else self._stored
        settled[key[1]] += entry.chunk.count

    def refuse(self, key: tuple[str, str], entry: Entry[Any], refusal: RefusedError) -> None:
        """A chunk is not stored and will not be; whether its sender was told it before shows in the entry."""
        count, labels = entry.chunk.count, (*key, refusal.reason.value)
        if entry.promised:
            self._refused_late[key[1]] += count
            self._metrics.refused_late.labels(*labels).inc(count)
            return
        self._metrics.refused.labels(*labels).inc(count)
        if entry.admitted:
            self._returned[key[1]] += count
