"""The audit by the hour: of each domain and class, what its readings of an hour came to. An hour is that in
which batches were sealed at the edge, if the clock there was synchronised, and otherwise that in which they
arrived at the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from agent.contract import H_CLOCK, H_SEALED_AT

LATE_SECONDS: Final = 600
"""What arrives longer than this after it was sealed is late."""
_AHEAD_SECONDS: Final = 3_600
"""A time of sealing so far after the arrival is no time that can be."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Readings of a domain, class and hour; `late` ones are among those in bronze. `lost` is how many batches
    were acknowledged as stored and never came: about when is told by the batch before."""

    domain: str | None
    cls: str | None
    hour: datetime
    in_bronze: int = 0
    late: int = 0
    pending: int = 0
    in_readings: int = 0
    quarantined: int = 0
    dead: int = 0
    missing: int = 0
    doubled: int = 0
    lost: int = 0

    @property
    def state(self) -> str:
        """`missing`, `doubled`, `pending`, `late` or `complete`: the worst that holds."""
        for name in ("missing", "doubled", "pending", "late"):
            if getattr(self, name) or (name == "missing" and self.lost):
                return name
        return "complete"


_COUNTS: Final = tuple(one.name for one in fields(Hour) if one.name not in ("domain", "cls", "hour"))


def stamped(bronze: DataFrame) -> DataFrame:
    """Rows of bronze with the `moment` to which they belong, and whether they are `late`."""
    headers = F.col("headers").cast("string")
    sealed = _header(headers, H_SEALED_AT, "([0-9]{1,19})").try_cast("long")
    synchronised = _header(headers, H_CLOCK, "synchronised=(yes)") == "yes"
    ahead = F.unix_micros("arrived") + _AHEAD_SECONDS * 1_000_000
    usable = synchronised & sealed.isNotNull() & (sealed / 1000 <= ahead)
    moment = F.when(usable, F.timestamp_micros((sealed / 1000).cast("long"))).otherwise(F.col("arrived"))
    delay = F.unix_micros("arrived") - F.unix_micros(moment)
    return bronze.withColumn("moment", moment).withColumn("late", delay > LATE_SECONDS * 1_000_000)


def of_batches(balanced: DataFrame, broken: DataFrame) -> DataFrame:
    """The counts of an hour from the rows of `balance.batches` and `balance.incomplete`."""
    key = ["domain", "class", "run", "n"]
    faults = broken.select(*key, "missing", "doubled")
    rows = balanced.join(faults, on=key, how="left").fillna({"missing": 0, "doubled": 0})
    alive, count = ~F.col("dead"), F.col("count")

    def summed(when: Column, what: Column = count) -> Column:
        return F.sum(F.when(when, what).otherwise(0))

    return rows.groupBy("domain", "class", F.date_trunc("hour", "moment").alias("hour")).agg(
        summed(alive).alias("in_bronze"),
        summed(alive & F.col("late")).alias("late"),
        summed(alive & ~F.col("refined")).alias("pending"),
        F.sum("in_readings").alias("in_readings"),
        summed(alive, F.col("quarantined")).alias("quarantined"),
        summed(F.col("dead")).alias("dead"),
        F.sum("missing").alias("missing"),
        F.sum("doubled").alias("doubled"),
    )


def of_others(placed: DataFrame) -> DataFrame:
    """The same from the rows of `balance.others`: messages that are of no batch."""
    short = F.col("difference")
    return placed.groupBy("domain", "class", F.date_trunc("hour", "moment").alias("hour")).agg(
        *(F.sum(name).alias(name) for name in ("in_bronze", "pending", "in_readings", "quarantined")),
        F.sum(F.greatest(short, F.lit(0))).alias("missing"),
        F.sum(F.greatest(-short, F.lit(0))).alias("doubled"),
    )


def collected(*parts: DataFrame) -> list[Hour]:
    """The rows of `of_batches` and `of_others`."""
    return [
        Hour(
            row.domain,
            row["class"],
            row.hour.astimezone(UTC),
            **{name: row[name] for name in _COUNTS if name in row and row[name] is not None},
        )
        for part in parts
        for row in part.collect()
    ]


def moments(balanced: DataFrame, runs: Iterable[tuple[str, str, str]]) -> DataFrame:
    """When the batches of some runs were sealed: `domain`, `class`, `run`, `n`, `moment`, by number."""
    wanted = F.lit(False)
    for domain, cls, run in runs:
        wanted |= (F.col("domain") == domain) & (F.col("class") == cls) & (F.col("run") == run)
    return balanced.where(wanted).select("domain", "class", "run", "n", "moment").orderBy("n")


def merged(hours: Iterable[Hour]) -> list[Hour]:
    """One for each domain, class and hour, in order."""
    sums: dict[tuple[str | None, str | None, datetime], list[int]] = {}
    for one in hours:
        known = sums.setdefault((one.domain, one.cls, one.hour), [0] * len(_COUNTS))
        for at, name in enumerate(_COUNTS):
            known[at] += getattr(one, name)
    return [
        Hour(domain, cls, hour, *counts)
        for (domain, cls, hour), counts in sorted(sums.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def about(known: Sequence[tuple[int, datetime]], n: int) -> datetime | None:
    """When a batch that never came was sealed, as far as the batches that did tell: (number, moment) in the
    order of numbers. The one before it, or the one after."""
    before = [moment for number, moment in known if number < n]
    after = [moment for number, moment in known if number > n]
    moment = before[-1] if before else (after[0] if after else None)
    return None if moment is None else moment.replace(minute=0, second=0, microsecond=0)


def _header(headers: Column, name: str, value: str) -> Column:
    found = F.regexp_extract(headers, f"(?im)^{name}: {value}", 1)
    return F.when(found != "", found)
