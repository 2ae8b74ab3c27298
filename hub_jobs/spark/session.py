"""Creates the jobs' Spark session and runs tasks in it.

Operators' spark-submit settings apply, except SQL settings that affect results. With `SPARK_REMOTE` tasks run
by plans on Spark Connect, otherwise on an RDD, because a session's first plan costs two to three seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hub_jobs.spark.connect_tasks import REMOTE, connected, run_by_plan
from hub_jobs.spark.java import check_java
from hub_jobs.spark.java_options import java_options

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

Work = TypeVar("Work")
Result = TypeVar("Result")

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""SQL settings that affect results and differ from Spark's defaults in some version."""
_USUAL: Final = {
    # Our files are compressed so well that the planner takes ten million rows for few and broadcasts them.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.sources.fileCompressionFactor": "10",
    "spark.ui.enabled": "false",
}
_SQL: Final = "spark.sql."
_LEFT: Final = (
    *("spark.sql.adaptive.", "spark.sql.autoBroadcastJoinThreshold", "spark.sql.broadcastTimeout"),
    *("spark.sql.catalog.", "spark.sql.catalogImplementation", "spark.sql.codegen.", "spark.sql.debug."),
    *("spark.sql.artifact.", "spark.sql.event.", "spark.sql.extensions", "spark.sql.hive.metastore."),
    *("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"),
    *("spark.sql.execution.arrow.pyspark.", "spark.sql.files.maxPartition", "spark.sql.files.minPartition"),
    *(
        "spark.sql.files.openCostInBytes",
        "spark.sql.inMemoryColumnarStorage.",
        "spark.sql.maxPlanStringLength",
    ),
    *("spark.sql.queryExecutionListeners", "spark.sql.redaction.", "spark.sql.shuffle."),
    *("spark.sql.sources.fileCompressionFactor", "spark.sql.sources.parallelPartitionDiscovery."),
    *("spark.sql.sortMergeJoinExec.", "spark.sql.ui.", "spark.sql.warehouse.dir"),
)
"""Prefixes of SQL settings that operators may choose, for planning and monitoring. All others are reset,
since rows and times may depend on them.
"""
_LOCAL: Final = {
    # Without both, a shuffle or a large result dials the machine's other address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
_DAEMON: Final = "spark.python.daemon.module"
_WORKERS_PATH: Final = "spark.executorEnv.PYTHONPATH"
_RETRYING: Final = "local[*,4]"
"""All cores, with four attempts per task; plain `local[*]` has one."""


def session(name: str) -> SparkSession:
    """Return a job's session: at `SPARK_REMOTE`, on spark-submit's master, or on all local cores. Raises
    `JavaError`.
    """
    from pyspark import SparkConf, SparkContext

    if REMOTE in os.environ:
        return _pinned(connected())

    _forget_ended_java()
    if SparkContext._gateway is None:
        check_java()
    # Only a conf that lives in the JVM knows what spark-submit was given.
    SparkContext._ensure_initialized(conf=_of_java(name))
    conf = SparkConf(_jvm=SparkContext._jvm)
    master = conf.get("spark.master") or "local[*]"
    conf.setMaster(_RETRYING if master == "local[*]" else master).setAppName(f"petiole {name}")
    is_local = master.startswith("local")
    if is_local:
        # Spark would take the first Python on the path for its workers.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in (_USUAL | (_LOCAL if is_local else {})).items():
        conf.setIfMissing(key, value)
    java_conf: Any = conf._jconf
    for key in [key for key, _ in conf.getAll() if _is_reset(key)]:
        java_conf.remove(key)
    conf.setAll(list(_ALWAYS.items()))
    if is_local and not conf.contains(_DAEMON) and not conf.contains(_WORKERS_PATH):
        conf.set(_DAEMON, "hub_jobs.spark.worker_daemon")
        conf.set(_WORKERS_PATH, str(Path(__file__).parents[2]))
    # A Java machine that PySpark starts shows it everywhere (Spark 4.2.0, SparkSubmit: for each shell).
    conf.set("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    interrupted = signal.getsignal(signal.SIGINT)
    is_new = SparkContext._active_spark_context is None
    context = SparkContext.getOrCreate(conf)
    with _first_worker(context, is_local and is_new):
        spark = _own(context, conf, is_new)
    if (
        interrupted is not signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, interrupted)  # PySpark has put its own in the place of the job's
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _own(context: SparkContext, conf: SparkConf, is_new: bool) -> SparkSession:
    """Return the jobs' session; in another program's context a separate one."""
    from pyspark.sql import SparkSession

    held: SparkSession | None = getattr(SparkSession, _HELD, None)
    if is_new:
        held = SparkSession.builder.config(conf=conf).getOrCreate()
    elif held is None or held.sparkContext is not context:
        held = _pinned(SparkSession.builder.getOrCreate().newSession())
    setattr(SparkSession, _HELD, held)
    return held


_HELD: Final = "_petiole_session"


def _pinned(spark: SparkSession) -> SparkSession:
    """Apply the settings that affect results."""
    for key in [key for key in spark.conf.getAll if _is_reset(key) and spark.conf.isModifiable(key)]:
        spark.conf.unset(key)
    for key, value in (_ALWAYS | _USUAL).items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    return spark


def _is_reset(key: str) -> bool:
    """Tell whether operators may not choose a SQL setting."""
    return key.startswith(_SQL) and not key.startswith(_LEFT)


@contextmanager
def _first_worker(context: SparkContext, is_wanted: bool) -> Iterator[None]:
    """Start the Python worker daemon in parallel; it takes as long as the session."""
    if not is_wanted:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(context.parallelize([0], 1).map(abs).collect)
        yield
    started.result()


def _forget_ended_java() -> None:
    """Let PySpark start a new Java after its own ended; otherwise it would use the dead one for ever."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    java = getattr(SparkContext._gateway, "proc", None)  # spark-submit is no child of this process
    if java is not None and java.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


_JAVA: Final = "spark.driver.extraJavaOptions"


def _of_java(name: str) -> SparkConf:
    """Return Java's settings, unless an operator gave them."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    home = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", "/nonexistent"), "conf")
    defaults = Path(home, "spark-defaults.conf")
    is_said = "PYSPARK_SUBMIT_ARGS" in os.environ or (defaults.exists() and _JAVA in defaults.read_text())
    if not is_said and (options := java_options(name)):
        conf.set(_JAVA, options)
    return conf


def run_tasks(spark: SparkSession, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    """Run a task for every piece of work; returns results in order."""
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.parallelize(work, len(work)).map(task).collect()
    return run_by_plan(spark, task, work)
