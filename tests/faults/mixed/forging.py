"""A sender with the device key that puts headers into its messages which are another's to write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from agent.contract import DEFAULT_CLASS
from tests.faults.mixed.dimensions import Headers
from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import Series
from tests.faults.world.devices import RETRY_SECONDS, DirectDevice, Notes
from tests.faults.world.machine import Machine

_AHEAD = 8
"""So many batches ahead of the agent an id is taken."""

PETIOLE: Final[tuple[Mapping[str, str], ...]] = (
    {"Petiole-Count": "2147483648"},
    {"Petiole-Count": "-1", "Petiole-Version": "1"},
    {"Petiole-Version": "99"},
    {"Petiole-Requests": "pump-1-1-1:10:0"},
    {"Petiole-Position": "{}"},
    {"Petiole-Sealed-At": "1"},
    {"Petiole-Clock": "yes"},
    {"Content-Encoding": "zstd"},
    {"Content-Type": "application/x-ndjson", "Petiole-Count": "1", "Petiole-Version": "1"},
)
SERVER: Final[tuple[Mapping[str, str], ...]] = (
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-TTL": "1s"},
    {"Nats-Expected-Last-Sequence": "1"},
    {"Nats-Expected-Stream": "TELEMETRY_0"},
    {"Nats-Expected-Last-Msg-Id": "other"},
    {"Nats-Stream-Source": "TEL_edge-9_normal 1 > > >"},
    {"nats-stream-source": "TEL_edge-9_normal 1 > > >"},
    {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "tel.edge-1.normal.press-9.m0"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
    {"Nats-Incr": "1"},
    {"Nats-Stream": "TELEMETRY_0", "Nats-Sequence": "1", "Nats-Subject": "tel.edge-9.normal.a.b"},
    {"Nats-Marker-Reason": "MaxAge"},
)


class ForgingDevice(DirectDevice):
    """Publishes readings of its own with forged headers; what is refused or taken for a repeat it publishes
    again with honest ones. `answers` counts what forged messages were answered."""

    def __init__(self, leaf: Machine, series: Series, sent: Sent, notes: Notes, forged: Headers) -> None:
        super().__init__(leaf.member, series, sent, notes, 1, 0.1)
        ways: dict[Headers, Callable[[], Iterator[Mapping[str, str]]]] = {
            Headers.MESSAGE_ID: self._ids,
            Headers.PETIOLE: lambda: itertools.cycle(PETIOLE),
            Headers.SERVER: lambda: itertools.cycle(SERVER),
        }
        self._leaf, self._forged = leaf, ways[forged]()
        sent.at_least_once = True  # under the id of another a repeat is not told from that other's message
        self._tried, self._headers = 0, dict[str, str]()
        self.stored = self.refused = 0

    def headers(self, numbers: range) -> dict[str, str]:
        if self._tried != numbers.start:
            self._tried = numbers.start
            self._headers = {**super().headers(numbers), **next(self._forged)}
        return self._headers

    def answered(self, numbers: range, said: dict[str, Any]) -> float | None:
        if "error" in said or said.get("duplicate"):
            self.refused += 1
            self._headers = {"Nats-Msg-Id": f"{super().headers(numbers)['Nats-Msg-Id']}-honest"}
            return RETRY_SECONDS
        self.stored += 1
        return super().answered(numbers, said)

    def trace(self, _since: float) -> str | None:
        """What was seen of the forgery."""
        if not self.stored + self.refused:
            return None
        return f"{self.stored} messages were stored, {self.refused} refused or taken for repeats"

    def _ids(self) -> Iterator[Mapping[str, str]]:
        """The ids of the agent's next batches."""
        while True:
            run, number = "", 0
            with suppress(OSError, ValueError, KeyError, AssertionError):
                run = str(self._leaf.status()["run"])
                number = int(self._leaf.metric("petiole_stored_batches_total", **{"class": DEFAULT_CLASS}))
            for ahead in range(1, _AHEAD + 1):
                yield {"Nats-Msg-Id": f"{run}-{DEFAULT_CLASS}-{number + ahead}"} if run else {}
