"""Readings by windows of time, as DataFrames: of a minute from readings, longer ones from shorter ones. Only
readings with a number count; a bool is 0 or 1.

Quantiles come from a sketch of each window (KLL, k = 200), so that longer windows can be made of shorter
ones. What it promises is about ranks: the value that it gives for p95 stands, with 99 % confidence, within
1.65 % of all values around the 95th per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

SERIES: Final = ("domain", "device", "metric", "tags")
"""What tells one series of readings from another."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SKETCH_K: Final = 200
LOOKBACK_SECONDS: Final = 3_600
"""A counter's increase is counted from its reading before, unless that is older than this."""


def with_increases(readings: DataFrame, counters: Sequence[str]) -> DataFrame:
    """Readings with a column `increase`: for metrics that match one of the patterns by how much the counter
    grew since the reading before (from zero after a reset), null for the others and where there is none
    before."""
    if not counters:
        return readings.withColumn("increase", F.lit(None).cast("double"))
    is_counter = F.col("metric").rlike("|".join(translate(counter) for counter in counters))
    series = Window.partitionBy(*SERIES[:-1], F.array_sort(F.map_entries("tags"))).orderBy("ts", "n", "index")
    before = F.lag(F.struct("ts", "value")).over(series)
    near = F.unix_micros("ts") - F.unix_micros(before["ts"]) <= LOOKBACK_SECONDS * 1_000_000
    grown = F.when(F.col("value") >= before["value"], F.col("value") - before["value"]).otherwise(
        F.col("value")
    )
    others = readings.where(~is_counter).withColumn("increase", F.lit(None).cast("double"))
    return readings.where(is_counter).withColumn("increase", F.when(near, grown)).unionByName(others)


def minutes(readings: DataFrame, *, quantiles: bool) -> DataFrame:
    """A row a series and minute of readings that have an `increase`."""
    at = F.struct("ts", "n", "index")
    value = F.col("value")
    grouped = readings.groupBy(window_of("ts", 60).alias("window"), *SERIES)
    return _finished(
        grouped.agg(
            F.count("value").alias("count"),
            F.sum("value").alias("sum"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            F.min_by(value, at).alias("first"),
            F.min("ts").alias("first_ts"),
            F.max_by(value, at).alias("last"),
            F.max("ts").alias("last_ts"),
            F.stddev_pop("value").alias("stddev"),
            F.sum("increase").alias("increase"),
            _sketch(F.expr(f"kll_sketch_agg_double(value, {_SKETCH_K})"), quantiles).alias("sketch"),
        ),
        60,
        quantiles=quantiles,
    )


def longer(shorter: DataFrame, seconds: int, *, quantiles: bool) -> DataFrame:
    """Windows of so many seconds from rows of shorter ones."""
    grouped = shorter.groupBy(window_of("window", seconds).alias("window"), *SERIES)
    merged = grouped.agg(
        F.sum("count").alias("count"),
        F.when(F.count("sum") == F.count("*"), F.sum("sum")).alias("sum"),
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.min_by("first", "first_ts").alias("first"),
        F.min("first_ts").alias("first_ts"),
        F.max_by("last", "last_ts").alias("last"),
        F.max("last_ts").alias("last_ts"),
        F.collect_list(F.struct("count", "mean", "stddev")).alias("parts"),
        F.sum("increase").alias("increase"),
        _sketch(F.expr("kll_merge_agg_double(sketch)"), quantiles).alias("sketch"),
    )
    return _finished(merged.withColumn("stddev", _stddev()), seconds, quantiles=quantiles)


def window_of(time: str, seconds: int) -> Column:
    """The beginning of the window in which a time is: by UTC, whatever the session's time zone."""
    at = F.unix_micros(time)
    return F.timestamp_micros(at - F.pmod(at, F.lit(seconds * 1_000_000)))


def _stddev() -> Column:
    """From the parts of a window: by their distances from its mean, for a difference of sums of squares would
    lose all digits where values are large and spread little."""
    mean = F.col("sum") / F.col("count")

    def with_part(total: Column, part: Column) -> Column:
        away = part["mean"] - mean
        return total + part["count"] * (part["stddev"] * part["stddev"] + away * away)

    return F.sqrt(F.aggregate("parts", F.lit(0.0), with_part) / F.col("count"))


def _sketch(made: Column, wanted: bool) -> Column:
    return made if wanted else F.first(F.lit(None).cast("binary"))


def _no_nan(number: Column) -> Column:
    """Null in the place of NaN, as the difference of two infinite sums has it. Spark 4.2 and DuckDB 1.5 order
    NaN above all numbers and skip a row group by the bounds in its Parquet file, which leave NaN out."""
    return F.nanvl(number, F.lit(None).cast("double"))


def _finished(grouped: DataFrame, seconds: int, *, quantiles: bool) -> DataFrame:
    ranks = [
        (F.expr(f"kll_sketch_get_quantile_double(sketch, {rank}D)") if quantiles else F.lit(None))
        .cast("double")
        .alias(name)
        for name, rank in QUANTILES.items()
    ]
    return grouped.select(
        "window",
        *SERIES,
        "count",
        _no_nan(F.col("sum")).alias("sum"),
        _no_nan(F.col("sum") / F.col("count")).alias("mean"),
        "min",
        "max",
        "first",
        "first_ts",
        "last",
        "last_ts",
        _no_nan(F.col("stddev")).alias("stddev"),
        _no_nan(F.col("increase")).alias("increase"),
        _no_nan(F.col("increase") / seconds).alias("rate"),
        *ranks,
        "sketch",
    )
