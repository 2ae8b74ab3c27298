"""What is known of each series from before the window: of whole days and hours by the windows of `rollup`,
where these are made of the readings as they are now, and by the readings themselves elsewhere.

A week of readings would be read for nothing but their count and the first and the last time of each series,
which a window says just as well. Readings without a number are in no window, and are always read.
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
"""From the first moment on, and before the second."""


class Rolled(NamedTuple):
    """The tables `rollup_1d` and `rollup_1h`, and of which version of `readings` they were made. Where they
    are newer than that, the windows that differ are of hours that changed in `readings` since."""

    days: Table
    hours: Table
    version: int


def open_rolled(lake: Place) -> Rolled | None:
    """What rollup has made, None where that is nothing. To be opened before `readings`, so that these have
    all that a rollup made windows of meanwhile."""
    days = open_table(lake, "rollup_1d")
    version = None if days is None else days.offset(ROLLED_UP)
    hours = open_table(lake, "rollup_1h")
    return None if days is None or version is None or hours is None else Rolled(days, hours, version)


@dataclass(frozen=True, slots=True)
class Before:
    """Rows of a table that tell of series before the window: how many readings each stands for, the first and
    the last of them, as names of columns; `count` "" where it is one reading."""

    table: Table
    where: list[Condition]
    count: str = ""
    first: str = "ts"
    last: str = "ts"


def known_before(
    readings: Table, rolled: Rolled | None, span: Span, where: Sequence[Condition] = ()
) -> list[Before]:
    """What to read of a span of time: all series that fulfil `where`, several rows a series."""
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
    """From when on rollup makes hours again, None for always, and the hours of a span that it has still to
    make; all of them where the log no longer shows it."""
    kept_since = readings.kept_since
    since = None if kept_since is None else at_micros(kept_since) + _HOUR
    changed = changed_files(readings, rolled.version)
    if changed is None:
        return span[1], ()
    # What is not in the table any more has no statistics.
    inside, held = set(file_paths(readings, [("ts", "within", [span])])), set(file_paths(readings))
    return since, hours_of([path for path in changed if path in inside or path not in held], "ts")


def rolled_spans(span: Span, since: datetime | None, unrolled: Iterable[datetime]) -> list[Span]:
    """The whole hours of a span from `since` on, as spans, without those that are `unrolled`."""
    return [
        part
        for first, end in whole((max(span[0], since or span[0]), span[1]), _HOUR)
        for part in between(
            (first, end), [(hour, hour + _HOUR) for hour in sorted(unrolled) if first <= hour < end]
        )
    ]


def whole(span: Span, unit: timedelta) -> list[Span]:
    """The whole days or hours of a span, none or one span of them."""
    first = span[0] + (_EPOCH - span[0]) % unit
    end = span[1] - (span[1] - _EPOCH) % unit
    return [(first, end)] if first < end else []


def between(span: Span, others: Sequence[Span]) -> list[Span]:
    """What is left of a span without others in it, which ascend and do not overlap."""
    edges = [span[0], *(edge for other in others for edge in other), span[1]]
    return [(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end]
