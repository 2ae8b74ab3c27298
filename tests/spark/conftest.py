"""The one Spark session of the tests, local, small, on the loopback; and a server of Spark Connect."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.standalone import BRIEF_JAVA, ConnectServer
from tests.spark.connect_client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """A Spark test that hangs ends its process: a session that was interrupted gives to each later question
    the answer to the one before."""
    item.add_marker(pytest.mark.timeout(600, method="thread"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores. A failed task is tried four times, which plain `local[2]` never does."""
    from pyspark.sql import SparkSession

    # Before the JVM starts, or its Python workers are whatever `python3` is on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.driver.extraJavaOptions", BRIEF_JAVA)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Without both, a shuffle or a large result dials the machine's other address.
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .config("spark.python.daemon.module", "hub_jobs.spark.worker_daemon")
        # What Spark keeps of all that runs, for tests to look into; without compression, so that they can.
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(tmp_path_factory.mktemp("events")))
        .config("spark.eventLog.compress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connect(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConnectServer]:
    """A server of Spark Connect that runs."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    try:
        await server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def client(connect: ConnectServer) -> Iterator[Client]:
    """A process on that server."""
    process = Client(connect.environment)
    yield process
    process.close()
