"""A Spark session with Delta's own jars, as an operator starts it by `--packages`."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from tests.harness.standalone import BRIEF_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SPARK: Final = "4.2."
_JARS: Final = Path(__file__).parents[2] / "build" / "ivy"
_CENTRAL: Final = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
"""Maven's own cache may hold a description without its jar, over which Ivy fails."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """The first case also fetches the jars, and the commands of Delta are slow on a busy machine."""
    item.add_marker(pytest.mark.timeout(1800))


@contextmanager
def apart() -> Iterator[None]:
    """A failure within leaves no answer of Spark to later questions.

    A call that a time-out interrupts has not read its answer, which the next call on the same connection
    would take for its own. So the connection of this thread is closed, and what still runs for it is
    cancelled.
    """
    try:
        yield
    except BaseException:  # a time-out of pytest is no Exception
        context = SparkContext._active_spark_context
        if context is not None and context._gateway is not None:
            connection = context._gateway._gateway_client.get_thread_connection()
            if connection is not None:
                connection.close()
            context.cancelAllJobs()
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with apart():
        return (yield)


def builder(directory: Path) -> SparkSession.Builder:
    """Of a session with two cores; its jars stay in `build/ivy`, its settings and warehouse lie in the
    directory."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = directory / "settings.xml"
    settings.write_text(_CENTRAL)
    return (
        SparkSession.builder.master("local[2,4]")
        .appName("tests with Delta")
        .config("spark.driver.extraJavaOptions", BRIEF_JAVA)
        .config("spark.jars.packages", PACKAGE)
        .config("spark.jars.ivy", str(_JARS))
        .config("spark.jars.ivySettings", str(settings))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that has Delta."""
    if not pyspark.__version__.startswith(SPARK):
        pytest.skip(f"{PACKAGE} is for Spark {SPARK}x, and this is PySpark {pyspark.__version__}")
    try:
        session = builder(tmp_path_factory.mktemp("spark")).getOrCreate()
    except PySparkRuntimeError:
        if any(_JARS.glob("jars/io.delta_delta-spark*.jar")):
            raise
        pytest.skip(f"the jars of {PACKAGE} can't be fetched from Maven Central; Ivy says why above")
    yield session
    session.stop()
