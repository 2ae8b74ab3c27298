"""Aggregates numeric readings to windows, minutes from readings and longer windows from shorter ones.

A bool counts as 0 or 1. Quantiles come from mergeable sketches (KLL, k = 200); a value given for p95 lies
within 1.65 % of all ranks of it, with 99 % confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

SERIES: Final = ("domain", "device", "metric", "tags")
"""The columns that identify a series."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SKETCH_K: Final = 200
LOOKBACK_SECONDS: Final = 3_600
"""Largest distance to the previous reading for a counter's increase."""


def with_increases(readings: DataFrame, counters: Sequence[str]) -> DataFrame:
    """Add the column `increase`: a matching counter's growth since the previous reading, from zero after a
    reset.

    Null for other metrics and without previous reading.
    """
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
    """Return a row per series and minute of readings with `increase`."""
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
    """Merge shorter windows to windows of so many seconds."""
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
    """Return a time's window start in UTC, whatever the session's time zone."""
    at = F.unix_micros(time)
    return F.timestamp_micros(at - F.pmod(at, F.lit(seconds * 1_000_000)))


def _stddev() -> Column:
    """Compute from distances to the mean; a difference of sums of squares would lose all digits."""
    mean = F.col("sum") / F.col("count")

    def with_part(total: Column, part: Column) -> Column:
        away = part["mean"] - mean
        return total + part["count"] * (part["stddev"] * part["stddev"] + away * away)

    return F.sqrt(F.aggregate("parts", F.lit(0.0), with_part) / F.col("count"))


def _sketch(made: Column, wanted: bool) -> Column:
    return made if wanted else F.first(F.lit(None).cast("binary"))


def _no_nan(number: Column) -> Column:
    """Replace NaN by null. Spark 4.2 and DuckDB 1.5 order NaN highest, but Parquet bounds omit it, so filters
    would skip its row group.
    """
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
