"""A real broker of MQTT that numbers packets from 1 on each connection: RabbitMQ with its plugin."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from agent.demo.ports import free_port

START_SECONDS = 120.0
_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{amqp}
mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}
mqtt.allow_anonymous = true
mqtt.prefetch = {prefetch}
log.console = true
log.file = false
"""


class RabbitMQ:
    """One broker, with its own ports and directories. What it keeps survives a `kill` and a new `start`."""

    def __init__(self, directory: Path, prefetch: int = 10) -> None:
        if not _SERVER.exists():
            pytest.skip("RabbitMQ is missing; install it with: apt-get install rabbitmq-server")
        self.port, self._directory = free_port(), directory
        self._epmd_port, amqp = free_port(), free_port()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rabbitmq.conf").write_text(_CONFIG.format(amqp=amqp, mqtt=self.port, prefetch=prefetch))
        (directory / "plugins").write_text("[rabbitmq_mqtt].\n")
        (directory / "env").touch()
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "env"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_NODENAME": f"petiole{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(amqp),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Run it; returns when it listens for MQTT."""
        epmd = shutil.which("epmd")
        assert epmd is not None, "epmd comes with Erlang"
        for command in ([epmd], [str(_SERVER)]):
            with (self._directory / "rabbitmq.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=log, env=self._environment, start_new_session=True
                    )
                )
        self._wait()

    def kill(self) -> None:
        """End it at once (SIGKILL), with all that it has started."""
        while self._processes:
            process = self._processes.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self) -> None:
        """An Erlang machine takes longer to start than what else is waited for."""
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            log = self._directory / "rabbitmq.log"
            assert self._processes[-1].poll() is None, f"the broker ended; see {log}"
            assert time.monotonic() < deadline, f"the broker does not listen; see {log}"
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0
