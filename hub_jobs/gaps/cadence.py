"""How often series of readings come, and where they did not, as DataFrames. A series' usual interval is the
median of those between its readings in a window of time; readings of one moment count once.

One sort of the window by series does it all: nothing of it is collected, and of the time before the window
only a row a series is sorted with it (`hub_jobs.gaps.look_back`).
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from agent.contract import COMMAND_METRIC

LEAST_INTERVALS: Final = 5
"""With fewer intervals nothing is said of what is usual."""
UNEVEN_INTERVALS: Final = 20
"""From so many intervals on the 95th per cent is not merely the longest of them."""
EDGES: Final = (1, 10, 60, 600, 3_600, 86_400)
"""The upper bounds of lateness, in seconds, of all buckets but the first and the last."""
BUCKETS: Final = ("ahead", *(f"to_{edge}" for edge in EDGES), "later")
"""Names of the buckets: by a second or more ahead of the arrival; late by up to so many seconds; later."""

_LABELLED: Final = ["domain", "device", "metric", "labels"]
_ACCURACY: Final = 1_000


def labelled(rows: DataFrame, *columns: Column | str) -> DataFrame:
    """The series of rows, but for answers to commands, and other columns of them."""
    labels = F.array_sort(F.map_entries("tags")).alias("labels")
    return rows.where(F.col("metric") != COMMAND_METRIC).select(*_LABELLED[:-1], labels, *columns)


def stretches(
    readings: DataFrame, before: DataFrame, begin: datetime, end: datetime, factor: float
) -> DataFrame:
    """What is worth telling of the readings of a window, and of what is known from `before` it as
    `look_back.known_before` says: a row a series that leads from its last reading to `end` (`open`), and a
    row a hole, from one reading to the next.

    Columns: `domain`, `device`, `metric`, `labels` (the tags as ordered entries), `since`, `until`,
    `seconds`, `open`, `readings` (of the series in the window), `median` and `p95` (seconds), `usual` (the
    median, or for want of intervals the mean before the window, or null), `bound` (seconds; null where
    nothing is usual), `is_hole` (longer than the bound), `missing` (about how many readings, of those due
    in the window) and `silent` (of the device, as `devices` says).

    The bound is `factor` times the usual interval; times the 95th per cent where that is itself beyond, for
    such a series comes unevenly: by events, or thinned out by a rule.
    """
    series = Window.partitionBy(*_LABELLED)
    following = F.lead("ts").over(series.orderBy("ts"))
    each = _with_last_before(readings, before).withColumn("following", following)
    moments = each.where("following is null or following > ts")
    until = F.coalesce("following", F.lit(end))
    timed = moments.select(
        *_LABELLED,
        F.col("ts").alias("since"),
        until.alias("until"),
        _seconds(until, F.col("ts")).alias("seconds"),
        F.col("following").isNull().alias("open"),
        "earlier",
        "pace",
    )
    closed = F.when(~F.col("open"), F.col("seconds"))
    ranks = F.percentile_approx(closed, [0.5, 0.95], _ACCURACY).over(series)
    known = timed.select(
        "*",
        F.sum((F.col("since") >= F.lit(begin)).cast("long")).over(series).alias("readings"),
        F.count(closed).over(series).alias("intervals"),
        F.max("earlier").over(series).alias("before"),
        F.max("pace").over(series).alias("pace_before"),
        ranks[0].alias("median"),
        ranks[1].alias("p95"),
    )
    return _with_silent(_judged(known, begin, factor).where("open or is_hole"))


def series(intervals: DataFrame) -> DataFrame:
    """A row a series with readings in the window, from `stretches`: its `holes` and what is `missing`."""
    sums = intervals.groupBy(*_LABELLED).agg(
        F.first("readings").alias("readings"),
        F.first("median").alias("median"),
        F.first("p95").alias("p95"),
        F.first("usual").alias("usual"),
        F.sum(F.col("is_hole").cast("long")).alias("holes"),
        F.sum("missing").alias("missing"),
    )
    return sums.where("readings > 0")


def devices(intervals: DataFrame) -> DataFrame:
    """A row a device, from `stretches`: `since` (its last reading), `until`, `readings`, `series` and the
    `usual` interval of its quickest series. `silent` is one that is quiet for longer than the bound of its
    quickest series; or, where nothing is usual, one that was there before the window and not in it. Null
    where that is unknown: nothing is usual of what there is."""
    return (
        intervals.where("open")
        .groupBy("domain", "device")
        .agg(
            F.max("since").alias("since"),
            F.first("until").alias("until"),
            F.sum("readings").alias("readings"),
            F.count("metric").alias("series"),
            F.min("usual").alias("usual"),
            F.first("silent").alias("silent"),
        )
    )


def holes(intervals: DataFrame) -> DataFrame:
    """The holes of `stretches`, but for those that go on because their device is silent."""
    return intervals.where("is_hole and not (open and coalesce(silent, false))")


def lateness(readings: DataFrame) -> DataFrame:
    """A row a domain: how many readings came how late, by `BUCKETS`, and the `worst` seconds. Late is by how
    much the arrival at the hub is after `ts`; what has its time from the hub's arrival is not counted."""
    late = _seconds(F.col("arrived"), F.col("ts"))
    edges = (None, -1, *EDGES, None)
    counts = [
        F.count(F.when(_within(late, low, high), True)).alias(name)
        for name, (low, high) in zip(BUCKETS, pairwise(edges), strict=True)
    ]
    stamped = readings.where("ts_source <> 'hub'")
    return stamped.groupBy("domain").agg(*counts, F.max(late).alias("worst"))


def _within(value: Column, above: float | None, up_to: float | None) -> Column:
    """Whether `above` < value <= `up_to`, where None is no bound."""
    beyond = F.lit(True) if above is None else value > above
    return beyond if up_to is None else beyond & (value <= up_to)


def _with_last_before(readings: DataFrame, before: DataFrame) -> DataFrame:
    """Readings of the window, and the last one before it of each series with how many intervals there were
    `earlier` and their mean (`pace`)."""
    nothing = (F.lit(None).cast("long").alias("earlier"), F.lit(None).cast("double").alias("pace"))
    intervals = F.sum("count") - 1
    last = before.groupBy(*_LABELLED).agg(
        F.max("last").alias("ts"),
        intervals.alias("earlier"),
        F.try_divide(_seconds(F.max("last"), F.min("first")), intervals).alias("pace"),
    )
    return labelled(readings, "ts", *nothing).unionByName(last)


def _judged(known: DataFrame, begin: datetime, factor: float) -> DataFrame:
    usual = F.when(F.col("intervals") >= LEAST_INTERVALS, F.col("median")).when(
        (F.col("before") >= LEAST_INTERVALS) & (F.col("pace_before") > 0), F.col("pace_before")
    )
    uneven = (F.col("intervals") >= UNEVEN_INTERVALS) & (F.col("p95") > F.col("median") * factor)
    bound = F.when(uneven, F.col("p95")).otherwise(F.col("usual")) * factor
    due = _seconds(F.col("until"), F.greatest(F.col("since"), F.lit(begin))) / F.col("usual")
    missing = (
        F.when(F.col("open"), F.ceil(due) - 1)
        .when(F.col("since") < F.lit(begin), F.round(due))
        .otherwise(F.round(due) - 1)
        .cast("long")
    )
    return (
        known.withColumn("usual", usual)
        .withColumn("bound", bound)
        .withColumn("is_hole", F.coalesce(F.col("seconds") > F.col("bound"), F.lit(False)))
        .withColumn("missing", F.when(F.col("is_hole"), F.greatest(missing, F.lit(0))).otherwise(0))
        .drop("earlier", "pace", "intervals", "before", "pace_before")
    )


def _with_silent(intervals: DataFrame) -> DataFrame:
    device = Window.partitionBy("domain", "device")
    quiet = F.min(F.when(F.col("open"), F.col("seconds"))).over(device)
    bound = F.min(F.when(F.col("open"), F.col("bound"))).over(device)
    heard = F.max("readings").over(device) > 0
    return intervals.withColumn("silent", F.coalesce(quiet > bound, F.when(~heard, F.lit(True))))


def _seconds(later: Column, sooner: Column) -> Column:
    return (F.unix_micros(later) - F.unix_micros(sooner)) / 1_000_000
