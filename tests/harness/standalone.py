"""Spark of the pyspark wheel on the loopback: a standalone cluster, whose master and workers are a process
each, with spark-submit from an empty directory and a clean environment; and a server of Spark Connect."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psutil
import pyspark

from agent.demo.loopback import free_port
from tests.harness.wait import ended, until

SPARK_HOME: Final = Path(pyspark.__file__).parent
BRIEF_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""One compiler and one collector: no query of a test runs for long enough to be worth the better ones."""
_START_SECONDS: Final = 180.0
_JOB_SECONDS: Final = 900.0


class Node:
    """A master or worker, with all that it starts on one core if that is given; its output goes into a
    log."""

    def __init__(
        self, directory: Path, *arguments: str, python: str | None = None, core: int | None = None
    ) -> None:
        directory.mkdir(parents=True)
        self.log = directory / "log"
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        command = [*pinned, str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        env = environment(directory) | ({} if python is None else {"PYSPARK_PYTHON": python})
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=directory, env=env, stdout=log, stderr=log)

    async def says(self, pattern: str) -> str:
        """What a pattern's group matches in the log, once it does."""

        def found() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return re.search(pattern, self.log.read_text()) is not None

        await until(found, f"{pattern} in {self.log}", _START_SECONDS)
        match = re.search(pattern, self.log.read_text())
        assert match is not None
        return match[1]

    def family(self) -> list[psutil.Process]:
        """The process and all that it started, executors and their Python workers among them."""
        try:
            mine = psutil.Process(self.process.pid)
            return [mine, *mine.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL to all of it at once, as if its machine were gone."""
        for one in self.family():
            one.kill()
        self.process.wait()


class Cluster:
    """A master and its workers of one core each, and the packed jobs that are submitted to it."""

    def __init__(self, directory: Path, dist: Path, master: Node, url: str, workers: list[Node]) -> None:
        self.master, self.url, self.workers = master, url, workers
        self._directory, self._dist = directory, dist
        self._python = directory / "python"

    def unpack(self) -> None:
        """The driver's Python, of the same archive as that of the executors."""
        self._python.mkdir()
        # Python's own needs to be told a filter from 3.14 on, and knows none before 3.11.4.
        subprocess.run(["tar", "-xf", self._archive, "-C", self._python], check=True)

    @property
    def _archive(self) -> Path:
        (found,) = self._dist.glob("petiole-python-*.tar.gz")
        return found

    async def submit(
        self, job: str, *arguments: str, master: str | None = None, archive: bool = False
    ) -> tuple[int, str]:
        """Run a packed job on the cluster, or in another master; its exit code and what it said. With
        `archive` the executors unpack a Python, else they take the driver's."""
        (code,) = self._dist.glob("petiole-jobs-*.zip")
        driver = str(self._python / "bin" / "python")
        given = ["--master", master or self.url, "--py-files", str(code)]
        if archive:
            given += ["--archives", f"{self._archive}#python"]
        workers = "./python/bin/python" if archive else driver
        pythons = {"spark.pyspark.python": workers, "spark.pyspark.driver.python": driver}
        given += [word for key, value in pythons.items() for word in ("--conf", f"{key}={value}")]
        empty = self._directory / "empty"
        empty.mkdir(exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            SPARK_HOME / "bin" / "spark-submit",
            *given,
            self._dist / "jobs" / f"{job}.py",
            *arguments,
            cwd=empty,
            env=environment(empty),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return await ended(process, _JOB_SECONDS)


@asynccontextmanager
async def open_cluster(directory: Path, dist: Path, workers: int) -> AsyncIterator[Cluster]:
    """A cluster, ready; all of it ends with the context."""
    async with open_nodes(directory, [None] * workers) as (url, nodes):
        cluster = Cluster(directory, dist, nodes[0], url, nodes[1:])
        await asyncio.to_thread(cluster.unpack)
        yield cluster


@asynccontextmanager
async def open_nodes(directory: Path, cores: Sequence[int | None]) -> AsyncIterator[tuple[str, list[Node]]]:
    """The address of a master, and that master with a worker for each of these cores, or for any core where
    none is given; all of them end with the context."""
    nodes: list[Node] = []
    try:
        nodes.append(Node(directory / "master", *_MASTER))
        url = await nodes[0].says(r"Starting Spark master at (spark://\S+)")
        for number, core in enumerate(cores):
            nodes.append(Node(directory / f"worker-{number}", *_WORKER, url, core=core))
        for node in nodes[1:]:
            await node.says(r"Successfully registered with master (\S+)")
        yield url, nodes
    finally:
        for node in nodes:
            node.kill()


def environment(home: Path) -> dict[str, str]:
    """What a node or a driver finds in its environment: nothing of the one that tests run in."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "SPARK_HOME": str(SPARK_HOME),
        # Spark's listeners would otherwise be on the machine's other address.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def busy_with(port: int, among: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Which of these processes have a connection to a port."""
    found = []
    for one in among:
        try:
            held = one.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        if any(each.raddr and each.raddr.port == port and each.status == "ESTABLISHED" for each in held):
            found.append(one)
    return found


_LOOPBACK: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_MASTER: Final = ("org.apache.spark.deploy.master.Master", *_LOOPBACK)
_WORKER: Final = (
    "org.apache.spark.deploy.worker.Worker",
    *_LOOPBACK,
    "--cores",
    "1",
    "--memory",
    "1g",
    "--work-dir",
    "work",
)


class ConnectServer:
    """A server of Spark Connect with two cores, which can be killed and started."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._directory, self._port, self._starts = directory, free_port(), 0
        self._settings = settings or {}
        self._node: Node | None = None
        self.address = f"sc://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it; no Java."""
        without_java = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
        return {**os.environ, **without_java, "SPARK_REMOTE": self.address}

    async def start(self) -> None:
        """Start it, also after `kill`."""
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            **self._settings,
        }
        self._starts += 1
        self._node = Node(
            self._directory / f"server-{self._starts}",
            "org.apache.spark.deploy.SparkSubmit",
            *("--driver-java-options", BRIEF_JAVA),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2,4]"),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            "spark-internal",
            python=sys.executable,
        )
        await self._node.says(r"Spark Connect server started at: (\S+)")

    def kill(self) -> None:
        """SIGKILL to it and its Python workers."""
        if self._node is not None:
            self._node.kill()
            self._node = None
