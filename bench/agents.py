"""Processes for measuring from outside: a leaf's agent with an embedded server and nobody at the hub, and a
program of others that runs as a daemon and can be killed and started again."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from agent.demo.loopback import free_port
from agent.demo.processes import program

DOMAIN = "edge-1"
READY_SECONDS = 30.0
_POLL_SECONDS = 0.005
_START_SECONDS: Final = 30.0
HTTP_INPUT = """
[publish]
batches_per_second = 10000

[[input]]
type = "http"
listen = "127.0.0.1:{http_port}"
"""
"""Of an agent that is to be as fast as it can."""


@dataclass(slots=True)
class Running:
    """A process that a benchmark starts, measures and kills."""

    _process: subprocess.Popen[bytes] | None = field(default=None, kw_only=True)

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def kill(self) -> None:
        """End it by SIGKILL, also if it is stopped; what it started goes on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass(slots=True)
class Bench(Running):
    """One agent's directory, ports and process."""

    directory: Path
    nats_port: int
    admin_port: int
    http_port: int

    @property
    def server(self) -> psutil.Process:
        return psutil.Process(int((self.directory / "state" / "nats" / "nats-server.pid").read_text()))

    @property
    def seed_file(self) -> Path:
        return self.directory / "state" / "keys" / "agent.nk"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    def start(self) -> float:
        """Start the agent; returns the seconds until it is ready."""
        began = time.monotonic()
        self._process = started(self.directory)
        wait_ready(self._process, self.directory, self.admin_port, READY_SECONDS, _POLL_SECONDS)
        return time.monotonic() - began

    def stop_server(self) -> None:
        command = [program("petiole"), "server", "stop", "-c", str(self.directory / "petiole.toml")]
        subprocess.run(command, check=True)


def started(directory: Path) -> subprocess.Popen[bytes]:
    """An agent with the configuration in a directory, where its log is too."""
    command = [program("petiole"), "run", "-c", str(directory / "petiole.toml")]
    with (directory / "agent.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_ready(
    agent: subprocess.Popen[bytes], directory: Path, admin_port: int, seconds: float, pause: float
) -> None:
    """Return when an agent is ready. Raises `RuntimeError`."""
    deadline = time.monotonic() + seconds
    while not _is_ready(admin_port):
        if time.monotonic() > deadline or agent.poll() is not None:
            raise RuntimeError(f"the agent is not ready; see {directory / 'agent.log'}")
        time.sleep(pause)


def _is_ready(admin_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def leaf(
    directory: Path, inputs: str, max_bytes: str = "1GiB", max_file_store: str = "4GiB"
) -> Iterator[Bench]:
    """A leaf's agent in a directory, not started; whatever it leaves running ends with the context. `inputs`
    is TOML in which `{http_port}` stands for a free port."""
    bench = Bench(directory, free_port(), free_port(), free_port())
    (directory / "petiole.toml").write_text(
        f"""\
role = "leaf"
domain = "{DOMAIN}"
state_dir = "{directory / "state"}"

[log]
level = "warning"

[nats]
listen = "127.0.0.1:{bench.nats_port}"
hub_urls = ["nats-leaf://127.0.0.1:{free_port()}"]
max_file_store = "{max_file_store}"

[[class]]
name = "normal"
max_bytes = "{max_bytes}"

[admin]
listen = "127.0.0.1:{bench.admin_port}"

{inputs.format(http_port=bench.http_port)}
"""
    )
    try:
        yield bench
    finally:
        bench.kill()
        bench.stop_server()


@dataclass(slots=True)
class Daemon(Running):
    """One process that listens at a port of this machine; what it prints goes to `log`."""

    command: tuple[str, ...]
    log: Path
    port: int

    def launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        """Start it; returns when it listens. Raises `RuntimeError`."""
        self.launch()
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            if time.monotonic() > deadline or self._process.poll() is not None:
                last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
                raise RuntimeError(f"{self.command[0]} does not listen at {self.port}: {last}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
