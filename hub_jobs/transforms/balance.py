"""Bronze against readings and quarantine, as DataFrames. A batch is complete when the places 0 to count - 1
are each there once, as a reading or as a line in quarantine; count, sum and sum of squares of the places
say so without a list, and a repeat that hides a hole shows too."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from agent.contract import ContractError, parse_ledger
from hub_jobs.transforms.messages import Reason

BATCH = ["domain", "class", "run", "n"]
_MESSAGE = ["stream", "created", "seq"]
_PLACE = ["source_stream", "source_identity", "source_seq"]


def refined(offsets: Mapping[tuple[str, str], int]) -> Column:
    """Whether a row of bronze or quarantine is below the offset of its stream and incarnation."""
    below = F.lit(False)
    for (stream, created), to in offsets.items():
        below |= (F.col("stream") == stream) & (F.col("created") == created) & (F.col("seq") <= to)
    return below


def batches(bronze: DataFrame, readings: DataFrame, quarantine: DataFrame, is_refined: Column) -> DataFrame:
    """A row a batch: its key, `count`, `refined`, what of it is in `in_readings` and `quarantined`, whether
    it is `complete`, and the `moment` and whether it is `late` that `hours.stamped` says."""
    other_content = quarantine.where(F.col("reason") == str(Reason.OTHER_CONTENT)).select(_MESSAGE)
    held = (
        bronze.where(F.col("n").isNotNull())
        .join(other_content, on=_MESSAGE, how="left_anti")
        .groupBy(BATCH)
        .agg(
            F.coalesce(F.max("count"), F.lit(0)).alias("count"),
            F.max(is_refined).alias("refined"),
            F.max(_kind() == "_dead").alias("dead"),
            F.min("moment").alias("moment"),
            F.min("late").alias("late"),
        )
    )
    placed = _placed(readings, quarantine)
    sums = placed.groupBy(BATCH).agg(
        F.count("place").alias("places"),
        F.coalesce(F.sum("place"), F.lit(0)).alias("total"),
        F.coalesce(F.sum(F.col("place") * F.col("place")), F.lit(0)).alias("squares"),
        F.sum(F.col("read").cast("long")).alias("in_readings"),
        F.max(F.col("place").isNull()).alias("whole"),
    )
    joined = held.join(sums, on=BATCH, how="left").fillna(
        {"places": 0, "total": 0, "squares": 0, "in_readings": 0, "whole": False}
    )
    count = F.col("count")
    adds_up = (
        (F.col("places") == count)
        & (F.col("total") * 2 == count * (count - 1))
        & (F.col("squares") * 6 == count * (count - 1) * (count * 2 - 1))
    )
    return joined.select(
        *BATCH,
        "count",
        "refined",
        "dead",
        "moment",
        "late",
        "in_readings",
        F.when(F.col("whole"), count).otherwise(F.col("places") - F.col("in_readings")).alias("quarantined"),
        F.when(F.col("whole"), F.col("places") == 0).otherwise(adds_up).alias("complete"),
    )


def incomplete(balanced: DataFrame, readings: DataFrame, quarantine: DataFrame) -> DataFrame:
    """A row a batch that is refined and not complete: its key, `missing` and `doubled` readings and the
    `places` that are there, in order."""
    broken = balanced.where(F.col("refined") & ~F.col("complete")).select(*BATCH, "count")
    placed = _placed(readings, quarantine).join(broken.select(BATCH), on=BATCH, how="left_semi")
    found = placed.groupBy(BATCH).agg(
        F.count("place").alias("rows"),
        F.countDistinct("place").alias("distinct"),
        F.sort_array(F.collect_list("place")).alias("places"),
    )
    return broken.join(found, on=BATCH, how="left").select(
        *BATCH,
        "count",
        F.greatest(F.col("count") - F.coalesce("distinct", F.lit(0)), F.lit(0)).alias("missing"),
        F.coalesce(F.col("rows") - F.col("distinct"), F.lit(0)).alias("doubled"),
        F.coalesce("places", F.array().cast("array<int>")).alias("places"),
    )


def runs(balanced: DataFrame, broken: DataFrame) -> DataFrame:
    """A row a run: `in_bronze`, `pending`, `in_readings`, `quarantined`, `missing`, `doubled`, all readings,
    and `dead` letters, which are counted in none of the first four."""
    key = ["domain", "class", "run"]
    alive = ~F.col("dead")
    sums = balanced.groupBy(key).agg(
        F.sum(F.when(alive, F.col("count")).otherwise(0)).alias("in_bronze"),
        F.sum(F.when(alive & ~F.col("refined"), F.col("count")).otherwise(0)).alias("pending"),
        F.sum("in_readings").alias("in_readings"),
        F.sum(F.when(alive, F.col("quarantined")).otherwise(0)).alias("quarantined"),
        F.sum(F.when(F.col("dead"), F.col("count")).otherwise(0)).alias("dead"),
    )
    faults = broken.groupBy(key).agg(F.sum("missing").alias("missing"), F.sum("doubled").alias("doubled"))
    return sums.join(faults, on=key, how="left").fillna({"missing": 0, "doubled": 0})


def others(bronze: DataFrame, readings: DataFrame, quarantine: DataFrame, is_refined: Column) -> DataFrame:
    """A row a place in a source where messages stood that are no batch: `domain`, `class`, the place, how
    many messages, how many of them are `pending`, `in_readings` and `quarantined`, and the `moment`."""
    named = quarantine.select(_MESSAGE).distinct().withColumn("named", F.lit(True))
    held = (
        bronze.where(_is_direct())
        .withColumn("refined", is_refined)
        .join(named, on=_MESSAGE, how="left")
        .groupBy("domain", "class", *_PLACE)
        .agg(
            F.countDistinct("digest").alias("in_bronze"),
            F.countDistinct(F.when(F.col("refined"), F.col("digest"))).alias("refined"),
            F.countDistinct(F.when(F.col("named"), F.col("digest"))).alias("quarantined"),
            F.min("moment").alias("moment"),
        )
    )
    stored = readings.where(F.col("n").isNull()).groupBy(_PLACE).agg(F.count("domain").alias("in_readings"))
    return (
        held.join(stored, on=_PLACE, how="left")
        .fillna({"in_readings": 0})
        .select(
            "domain",
            "class",
            *_PLACE,
            "moment",
            "in_bronze",
            (F.col("in_bronze") - F.col("refined")).alias("pending"),
            "in_readings",
            "quarantined",
            (F.col("refined") - F.col("in_readings") - F.col("quarantined")).alias("difference"),
        )
    )


def direct(placed: DataFrame) -> DataFrame:
    """A row a domain and class of `others`: the same sums as `runs`."""
    sums = ("in_bronze", "pending", "in_readings", "quarantined")
    return placed.groupBy("domain", "class").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.sum(F.greatest(F.col("difference"), F.lit(0))).alias("missing"),
        F.sum(F.greatest(-F.col("difference"), F.lit(0))).alias("doubled"),
    )


def ledgers(bronze: DataFrame) -> DataFrame:
    """All ledger records: `domain`, `class`, `stream`, `seq`, the source's place, `payload`, and the `fault`
    for which one can't be used, null for a good one."""
    said = bronze.where(F.col("class").isNotNull() & F.col("subject").endswith("._ledger"))
    fault = F.udf(_ledger_fault, StringType(), useArrow=False)
    return said.select(
        "domain",
        "class",
        "stream",
        "seq",
        *_PLACE,
        "payload",
        fault("payload", "domain", "class").alias("fault"),
    )


def _ledger_fault(payload: bytes, domain: str, cls: str) -> str | None:
    try:
        ledger = parse_ledger(bytes(payload))
    except ContractError as error:
        return str(error)
    if (ledger.domain, ledger.cls) != (domain, cls):
        return f"it speaks for {ledger.domain}, class {ledger.cls}"
    return None


def newest(records: DataFrame) -> DataFrame:
    """Of the good records of every run among `ledgers` the newest one, `payload`, and `naming`, the one that
    says most of what was discarded."""
    payload = F.col("payload").cast("string")
    said = records.where(F.col("fault").isNull()).select(
        "domain",
        "class",
        "payload",
        F.get_json_object(payload, "$.run").alias("run"),
        F.struct(
            F.coalesce(F.get_json_object(payload, "$.final") == "true", F.lit(False)).alias("final"),
            F.get_json_object(payload, "$.n").cast("long").alias("n"),
            F.get_json_object(payload, "$.readings.accepted").cast("long").alias("accepted"),
            F.get_json_object(payload, "$.readings.stored").cast("long").alias("stored"),
        ).alias("age"),
        F.get_json_object(payload, "$.readings.discarded").cast("long").alias("discarded"),
    )
    chosen = said.groupBy("domain", "class", "run").agg(
        F.max_by("payload", "age").alias("payload"),
        F.max_by("payload", F.struct("discarded", "age")).alias("naming"),
    )
    return chosen.select("payload", "naming")


def origins(records: DataFrame) -> DataFrame:
    """Which stream of its leaf each source took from, as far as good records among `ledgers` tell:
    `source_stream`, `source_identity`, `domain`, `class`, `created`."""
    payload = F.col("payload").cast("string")
    good = records.where(F.col("fault").isNull() & F.col("source_identity").isNotNull())
    return good.select(
        "source_stream",
        "source_identity",
        "domain",
        "class",
        F.get_json_object(payload, "$.stream.created").alias("created"),
    ).distinct()


def counts(bronze: DataFrame, domain: str, cls: str, run: str, first: int, last: int) -> DataFrame:
    """A row a batch of a run that arrived, within these numbers: `n` and `count`. Dead letters, which are
    numbered too, are no readings."""
    own = (F.col("domain") == domain) & (F.col("class") == cls) & (F.col("run") == run)
    own &= F.split("subject", r"\.").getItem(3) == "_batch"
    held = bronze.where(own & F.col("n").between(first, last))
    return held.groupBy("n").agg(F.coalesce(F.max("count"), F.lit(0)).alias("count"))


def direct_places(bronze: DataFrame, stream: str, identity: str, first: int, last: int) -> DataFrame:
    """The sequences of a source, within these, of the direct messages that arrived: `source_seq`."""
    own = (F.col("source_stream") == stream) & (F.col("source_identity") == identity)
    held = bronze.where(own & F.col("source_seq").between(first, last) & _is_direct())
    return held.select("source_seq").distinct()


def _is_direct() -> Column:
    return F.col("n").isNull() & ~F.coalesce(_kind().isin("_ledger", "_clock", "_dead"), F.lit(False))


def sources(bronze: DataFrame) -> DataFrame:
    """The domain and class of every source: `source_stream`, `source_identity`, `domain`, `class`."""
    named = bronze.where(F.col("class").isNotNull())
    return named.groupBy("source_stream", "source_identity").agg(
        F.max("domain").alias("domain"), F.max("class").alias("class")
    )


def _kind() -> Column:
    """The token of a subject that says what a message of the agent is; the device of a direct one."""
    return F.split("subject", r"\.").getItem(3)


def _placed(readings: DataFrame, quarantine: DataFrame) -> DataFrame:
    """The places of batches that are taken, `read` or in quarantine; null for a whole batch in quarantine."""
    taken = readings.where(F.col("n").isNotNull()).select(
        *BATCH, F.col("index").alias("place"), F.lit(True).alias("read")
    )
    named = quarantine.where(F.col("n").isNotNull() & (F.col("reason") != str(Reason.OTHER_CONTENT))).select(
        *BATCH, F.col("line").alias("place"), F.lit(False).alias("read")
    )
    return taken.unionByName(named)
