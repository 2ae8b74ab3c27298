"""A server of Spark Connect on the loopback, a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent.demo.ports import free_port
from tests.harness.standalone import BRIEF_JAVA, Node


class ConnectServer:
    """A server of Spark Connect with two cores, which can be killed and started."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port, self._starts = directory, free_port(), 0
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
