"""Queries a Spark session, classic or Spark Connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MANY: Final = 1 << 20
"""More than any number of cores."""


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks run at once; on Spark Connect, the server's default parallelism."""
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.defaultParallelism
    return spark.range(_MANY).mapInArrow(_one_row, "part long").count()


def _one_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"part": pa.array([0], pa.int64())})
