"""Summarises each series before the window, by current windows of `rollup` and by readings elsewhere.

Only count, first and last time are needed. Readings without a number are in no window and are always read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from hub_jobs.tables.changes import changed_files, hours_of
from hub_jobs.tables.commits import ROLLED_UP
from hub_jobs.tables.delta import Table, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, file_paths
from hub_jobs.times import at_micros

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)

Span = tuple[datetime, datetime]
"""A half-open span of time."""


class Rolled(NamedTuple):
    """The tables `rollup_1d` and `rollup_1h` with the version of `readings` below them.

    Windows of newer tables differ only in hours that changed in `readings` since.
    """

    days: Table
    hours: Table
    version: int


def open_rolled(lake: Place) -> Rolled | None:
    """Open the rollup tables, None without any. Open them before `readings`, which then cover all windows."""
    days = open_table(lake, "rollup_1d")
    version = None if days is None else days.offset(ROLLED_UP)
    hours = open_table(lake, "rollup_1h")
    return None if days is None or version is None or hours is None else Rolled(days, hours, version)


@dataclass(frozen=True, slots=True)
class Before:
    """Rows of a table about series before the window: column names of count, first and last; `count` "" means
    1.
    """

    table: Table
    where: list[Condition]
    count: str = ""
    first: str = "ts"
    last: str = "ts"


def known_before(
    readings: Table, rolled: Rolled | None, span: Span, where: Sequence[Condition] = ()
) -> list[Before]:
    """Return the rows to read for a span, several per series that fulfils `where`."""
    exact = [] if rolled is None else rolled_spans(span, *_unrolled(readings, rolled, span))
    if rolled is None or not exact:
        return [Before(readings, [("ts", "within", [span]), *where])]
    days = [day for part in exact for day in whole(part, _DAY)]
    hours = [hour for part in exact for hour in between(part, whole(part, _DAY))]
    texts: list[Condition] = [("ts", "within", exact), ("value", "null", None)]
    known = [Before(readings, [*texts, *where])]
    if left := between(span, exact):
        known.append(Before(readings, [("ts", "within", left), *where]))
    for table, spans in ((rolled.days, days), (rolled.hours, hours)):
        if spans:
            known.append(Before(table, [("window", "within", spans), *where], "count", "first_ts", "last_ts"))
    return known


def _unrolled(readings: Table, rolled: Rolled, span: Span) -> tuple[datetime | None, Iterable[datetime]]:
    """Return since when rollup makes hours again (None: always), and the span's hours not yet made."""
    kept_since = readings.kept_since
    since = None if kept_since is None else at_micros(kept_since) + _HOUR
    changed = changed_files(readings, rolled.version)
    if changed is None:
        return span[1], ()
    # What is not in the table any more has no statistics.
    inside, held = set(file_paths(readings, [("ts", "within", [span])])), set(file_paths(readings))
    return since, hours_of([path for path in changed if path in inside or path not in held], "ts")


def rolled_spans(span: Span, since: datetime | None, unrolled: Iterable[datetime]) -> list[Span]:
    """Return the span's whole hours from `since` on, without `unrolled` hours."""
    return [
        part
        for first, end in whole((max(span[0], since or span[0]), span[1]), _HOUR)
        for part in between(
            (first, end), [(hour, hour + _HOUR) for hour in sorted(unrolled) if first <= hour < end]
        )
    ]


def whole(span: Span, unit: timedelta) -> list[Span]:
    """Return the whole days or hours of a span as at most one span."""
    first = span[0] + (_EPOCH - span[0]) % unit
    end = span[1] - (span[1] - _EPOCH) % unit
    return [(first, end)] if first < end else []


def between(span: Span, others: Sequence[Span]) -> list[Span]:
    """Return a span without others, which are sorted and disjoint."""
    edges = [span[0], *(edge for other in others for edge in other), span[1]]
    return [(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end]
