"""A leaf's agent as a process of its own, with an embedded server and nobody at the hub, for measuring from
outside."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.demo.ports import free_port

DOMAIN = "edge-1"
READY_SECONDS = 30.0
_POLL_SECONDS = 0.005


@dataclass(slots=True)
class Bench:
    """One agent's directory, ports and process."""

    directory: Path
    nats_port: int
    admin_port: int
    http_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def agent(self) -> psutil.Process:
        """The agent's process."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def server(self) -> psutil.Process:
        """The process of its nats-server."""
        return psutil.Process(int((self.directory / "state" / "nats" / "nats-server.pid").read_text()))

    @property
    def seed_file(self) -> Path:
        """The seed of the agent's own identity at its server."""
        return self.directory / "state" / "keys" / "agent.nk"

    @property
    def url(self) -> str:
        """Its server."""
        return f"nats://127.0.0.1:{self.nats_port}"

    def start(self) -> float:
        """Start the agent; returns the seconds until it is ready."""
        began = time.monotonic()
        with (self.directory / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program("petiole"), "run", "-c", str(self.directory / "petiole.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not self._ready():
            if time.monotonic() - began > READY_SECONDS or self.process.poll() is not None:
                raise RuntimeError(f"the agent is not ready; see {self.directory / 'agent.log'}")
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    def kill(self) -> None:
        """End the agent by SIGKILL; its server goes on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop_server(self) -> None:
        """Stop the server that the agent has left running."""
        command = [program("petiole"), "server", "stop", "-c", str(self.directory / "petiole.toml")]
        subprocess.run(command, check=True)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def program(name: str) -> str:
    """A program of the environment that this one runs in."""
    return str(Path(sys.executable).parent / name)


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
