"""The Spark session of the jobs, and tasks in it. What the operator gave to spark-submit stands; the rest is
set so that the traps met while measuring stay shut.

Where `SPARK_REMOTE` names a server of Spark Connect, the session is one of its, and tasks run there by a plan
alone. Elsewhere they are tasks of an RDD, because the first plan of a session takes two to three seconds of
processor time more."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hub_jobs.spark.class_archive import java_options
from hub_jobs.spark.connect_tasks import REMOTE, connected, run_by_plan
from hub_jobs.spark.java import check_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
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
}
_LOCAL: Final = {
    # Without both, a shuffle or a large result dials the machine's other address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
_DAEMON: Final = "spark.python.daemon.module"
_WORKERS_PATH: Final = "spark.executorEnv.PYTHONPATH"
_RETRYING: Final = "local[*,4]"
"""All cores, and each task up to four times. Plain `local[*]` is the same without trying a task again."""


def session(name: str) -> SparkSession:
    """The session of a job: on the server of Spark Connect that `SPARK_REMOTE` names, else in the master that
    spark-submit was given, and without either on all cores of this machine. Raises `JavaError`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if REMOTE in os.environ:
        spark = connected()
        for key, value in _ALWAYS.items():
            if spark.conf.isModifiable(key):
                spark.conf.set(key, value)
        return spark

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
    for key, value in (_ALWAYS | (_LOCAL if is_local else {})).items():
        conf.setIfMissing(key, value)
    if is_local and not conf.contains(_DAEMON) and not conf.contains(_WORKERS_PATH):
        conf.set(_DAEMON, "hub_jobs.spark.worker_daemon")
        conf.set(_WORKERS_PATH, str(Path(__file__).parents[2]))
    # A Java machine that PySpark starts shows it everywhere (Spark 4.2.0, SparkSubmit: for each shell).
    conf.set("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    interrupted = signal.getsignal(signal.SIGINT)
    is_new = SparkContext._active_spark_context is None
    with _first_worker(SparkContext.getOrCreate(conf), is_local and is_new):
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if (
        interrupted is not signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, interrupted)  # PySpark has put its own in the place of the job's
    spark.sparkContext.setLogLevel("WARN")
    return spark


@contextmanager
def _first_worker(context: SparkContext, is_wanted: bool) -> Iterator[None]:
    """Meanwhile start the Python that workers are forked from, which takes as long as the rest of a
    session."""
    if not is_wanted:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(context.parallelize([0], 1).map(abs).collect)
        yield
    started.result()


def _forget_ended_java() -> None:
    """Let PySpark start another Java machine where its own has crashed or was killed: it would ask that one
    for ever, and so would each run of `--every`."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    java = getattr(SparkContext._gateway, "proc", None)  # spark-submit is no child of this process
    if java is not None and java.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


_JAVA: Final = "spark.driver.extraJavaOptions"


def _of_java(name: str) -> SparkConf:
    """How the Java machine is started, unless an operator says that."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    home = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", "/nonexistent"), "conf")
    defaults = Path(home, "spark-defaults.conf")
    is_said = "PYSPARK_SUBMIT_ARGS" in os.environ or (defaults.exists() and _JAVA in defaults.read_text())
    if not is_said and (options := java_options(name)):
        conf.set(_JAVA, options)
    return conf


def run_tasks(spark: SparkSession, task: Callable[[Work], Result], work: Sequence[Work]) -> list[Result]:
    """One Spark task for every piece of work; their results in order."""
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.parallelize(work, len(work)).map(task).collect()
    return run_by_plan(spark, task, work)
