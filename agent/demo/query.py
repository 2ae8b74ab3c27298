"""Queries the table by spark-submit, given lake, senders' counts and answer file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812

from hub_jobs.spark.session import session
from hub_jobs.tables.scan import read


def main(lake: str, question: str, answer: str) -> None:
    """Count rows, distinct and acknowledged serials by device."""
    counts = json.loads(Path(question).read_text())
    spark = session("query")
    expected = spark.createDataFrame(
        [(domain, device, n) for domain, devices in counts.items() for device, n in devices.items()],
        "domain string, device string, sent long",
    )
    serials = read(spark, f"{lake}/readings").where(F.col("metric") == "serial")
    rows = (
        serials.join(expected, on=["domain", "device"], how="inner")
        .groupBy("domain", "device")
        .agg(
            F.count("value").alias("rows"),
            F.countDistinct("value").alias("distinct"),
            F.countDistinct(F.when(F.col("value").between(1, F.col("sent")), F.col("value"))).alias(
                "acknowledged"
            ),
        )
        .orderBy("domain", "device")
    )
    rows.show(truncate=False)
    Path(answer).write_text(json.dumps([row.asDict() for row in rows.collect()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
