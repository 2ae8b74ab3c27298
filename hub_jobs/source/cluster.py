"""What is asked of a Spark session, whether it is of Spark Connect or has a context of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_MANY: Final = 1 << 20
"""More than there are cores."""


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks run at once; on Spark Connect into how many parts the server cuts what says nothing."""
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.defaultParallelism
    return spark.range(_MANY).mapInArrow(_one_row, "part long").count()


def _one_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"part": pa.array([0], pa.int64())})
