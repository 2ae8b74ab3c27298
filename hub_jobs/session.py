"""The Spark session of the jobs. What the operator gave to spark-submit stands; the rest is set so that the
traps met while measuring stay shut."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = TypeVar("Work")

Result = TypeVar("Result")

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Our files are compressed so well that the planner takes ten million rows for few and broadcasts them.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.sources.fileCompressionFactor": "10",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    # Without both, a shuffle or a large result dials the machine's other address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
_RETRYING: Final = "local[*,4]"
"""All cores, and each task up to four times. Plain `local[*]` is the same without trying a task again."""


def session(name: str) -> SparkSession:
    """The session of a job, in the master that spark-submit was given; without one on all cores of this
    machine."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # Only a conf that lives in the JVM knows what spark-submit was given.
    SparkContext._ensure_initialized()
    conf = SparkConf(_jvm=SparkContext._jvm)
    master = conf.get("spark.master") or "local[*]"
    conf.setMaster(_RETRYING if master == "local[*]" else master).setAppName(f"petiole {name}")
    is_local = master.startswith("local")
    if is_local:
        # Spark would take the first Python on the path for its workers.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in (_ALWAYS | (_LOCAL if is_local else {})).items():
        conf.setIfMissing(key, value)
    interrupted = signal.getsignal(signal.SIGINT)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if (
        interrupted is not signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, interrupted)  # PySpark has put its own in the place of the job's
    spark.sparkContext.setLogLevel("WARN")
    return spark


def run_tasks(spark: SparkSession, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    """One Spark task for every piece of work; their results in order."""
    return spark.sparkContext.parallelize(work, len(work)).map(task).collect()
