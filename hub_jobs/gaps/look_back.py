"""What is known of each series from before the window: of whole days and hours by the windows of `rollup`,
where these are made of the readings as they are now, and by the readings themselves elsewhere.

A week of readings would be read for nothing but their count and the first and the last time of each series,
which a window says just as well. Readings without a number are in no window, and are always read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from hub_jobs.gaps.cadence import labelled
from hub_jobs.tables.changes import changed_files, hours_of
from hub_jobs.tables.commits import ROLLED_UP
from hub_jobs.tables.delta import Table, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import Condition, file_paths, frame
from hub_jobs.times import at_micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def known_before(
    spark: SparkSession,
    readings: Table,
    rolled: Rolled | None,
    span: Span,
    where: Sequence[Condition] = (),
) -> DataFrame:
    """Rows of series that fulfil `where` with readings in a span of time, several a series: how many there
    are (`count`), the `first` and the `last`. Columns as `labelled` gives them, and these."""
    exact = [] if rolled is None else rolled_spans(span, *_unrolled(readings, rolled, span))
    if rolled is None or not exact:
        return _counted(frame(spark, readings, [("ts", "within", [span]), *where]))
    days = [day for part in exact for day in whole(part, _DAY)]
    hours = [hour for part in exact for hour in between(part, whole(part, _DAY))]
    texts: list[Condition] = [("ts", "within", exact), ("value", "null", None)]
    known = _counted(frame(spark, readings, [*texts, *where]))
    if left := between(span, exact):
        known = known.unionByName(_counted(frame(spark, readings, [("ts", "within", left), *where])))
    for table, spans in ((rolled.days, days), (rolled.hours, hours)):
        if spans:
            windows = frame(spark, table, [("window", "within", spans), *where])
            known = known.unionByName(_counted(windows, "count", "first_ts", "last_ts"))
    return known


def _counted(rows: DataFrame, count: str = "1", first: str = "ts", last: str = "ts") -> DataFrame:
    named = {"count": f"cast({count} as long)", "first": first, "last": last}
    return labelled(rows, *(F.expr(given).alias(name) for name, given in named.items()))


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
