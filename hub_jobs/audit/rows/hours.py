"""Assigns messages to moments and counts arrivals by hour. Pure.

A batch's moment is its sealing time at the edge if that clock was synchronised, else its arrival at the hub.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from agent.contract import H_CLOCK, H_SEALED_AT
from hub_jobs.audit.in_transit import InTransit
from hub_jobs.source.protocol import header_column
from hub_jobs.tables.grouping import Names, grouped, summed
from hub_jobs.tables.ranges import Mask, Numbers
from hub_jobs.times import HOUR, at_micros, micros

LATE_SECONDS: Final = 600
"""Delay from sealing to arrival above which a batch is late."""
_AHEAD_SECONDS: Final = 3_600
"""Sealing times this far after arrival are invalid."""
_SECOND: Final = 1_000_000
_NANOSECOND_DIGITS: Final = 19


def moments(rows: pa.Table) -> tuple[Numbers, Mask]:
    """Return moments of batches (`arrived`, `headers`) in microseconds since 1970, and a mask of late
    batches.
    """
    arrived: Numbers = rows["arrived"].cast(pa.int64()).to_numpy()
    headers = [row or b"" for row in rows["headers"].to_pylist()]
    sealed = header_column(headers, H_SEALED_AT.encode())
    clocks = header_column(headers, H_CLOCK.encode())
    found = arrived.copy()
    for at, (text, clock) in enumerate(zip(sealed, clocks, strict=True)):
        if text is None or clock is None or not clock.startswith(b"synchronised=yes"):
            continue
        if text.isdigit() and len(text) <= _NANOSECOND_DIGITS:
            found[at] = int(text) // 1000
    found = np.where(found <= arrived + _AHEAD_SECONDS * _SECOND, found, arrived)
    return found, arrived - found > LATE_SECONDS * _SECOND


@dataclass(frozen=True, slots=True)
class Hour:
    """A row of the table `audit_hours`, in readings."""

    domain: str | None
    cls: str | None
    hour: datetime
    in_bronze: int = 0
    late: int = 0
    """Late readings in bronze."""
    pending: int = 0
    in_readings: int = 0
    quarantined: int = 0
    dead: int = 0
    missing: int = 0
    doubled: int = 0
    lost: int = 0
    """Batches acknowledged as stored that never arrived; the preceding batch gives the hour."""
    on_the_way: int = 0
    """Messages announced in this hour that are not in bronze."""

    @property
    def state(self) -> str:
        """The worst of `missing`, `doubled`, `pending`, `late`, else `complete`."""
        for name in ("missing", "doubled", "pending", "late"):
            if getattr(self, name) or ((beside := _BESIDE.get(name)) and getattr(self, beside)):
                return name
        return "complete"


_BESIDE: Final = {"missing": "lost", "pending": "on_the_way"}
_COUNTS: Final = tuple(field.name for field in fields(Hour) if field.name not in ("domain", "cls", "hour"))


def by_hour(
    owners: Sequence[Names], owner: Numbers, moment: Numbers, sign: int, **counts: Numbers
) -> list[Hour]:
    """Count by hour; `sign` -1 subtracts."""
    hour = moment // HOUR
    (ids,), size, firsts = grouped([owner], [hour])
    sums = {name: summed(ids, size, values) for name, values in counts.items()}
    found = []
    for at, first in enumerate(firsts.tolist()):
        domain, cls = owners[int(owner[first])]
        of_hour = {name: sign * values[at] for name, values in sums.items()}
        found.append(Hour(domain, cls, _hour(int(hour[first])), *(of_hour.get(name, 0) for name in _COUNTS)))
    return found


def hours_of_transit(found: Iterable[InTransit]) -> list[Hour]:
    """Return messages in transit by the hour of their announcement."""
    return [
        Hour(
            in_transit.domain,
            in_transit.cls,
            _hour(micros(in_transit.announced_at) // HOUR),
            on_the_way=in_transit.messages,
        )
        for in_transit in found
        if in_transit.messages
    ]


def merged_hours(hours: Iterable[Hour]) -> list[Hour]:
    """Merge to one sorted row per domain, class and hour."""
    sums: dict[tuple[str | None, str | None, datetime], list[int]] = {}
    for counted in hours:
        known = sums.setdefault((counted.domain, counted.cls, counted.hour), [0] * len(_COUNTS))
        for at, name in enumerate(_COUNTS):
            known[at] += getattr(counted, name)
    return [
        Hour(domain, cls, hour, *counts)
        for (domain, cls, hour), counts in sorted(sums.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def hour_about(numbers: Sequence[int], moments: Sequence[int], n: int) -> datetime | None:
    """Estimate the sealing hour of a missing batch: that of the preceding batch, or of the first.

    `numbers` are sorted; `moments` are in microseconds.
    """
    if not numbers:
        return None
    return _hour(moments[max(bisect_left(numbers, n) - 1, 0)] // HOUR)


def _hour(number: int) -> datetime:
    return at_micros(number * HOUR)
