"""`petiole run` as processes, a hub and a leaf of them, and a supervisor's end of the notify protocol: a real
datagram socket that keeps what it receives."""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from agent.cli.main import app
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.testing.agent_process import PETIOLE, AgentProcess
from tests.harness.wait import WAIT_SECONDS

__all__ = ["PETIOLE", "Agent", "Supervisor", "hub_and_leaf", "leaf_with"]


class Agent(AgentProcess):
    """One that has an `http` input."""

    def post(self, body: bytes, key: str) -> int:
        request = urllib.request.Request(
            f"{self.member.http_url}/v1/readings",
            body,
            {"Content-Type": "application/json", "Idempotency-Key": key},
        )
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code


@contextmanager
def hub_and_leaf(
    directory: Path, *, http_only: bool = False, strangers: int = 0
) -> Iterator[tuple[Agent, Agent]]:
    """A hub and the leaf `edge-1` that it knows, neither of which runs yet; both end with the context.

    The leaf has the inputs http, file and host, or `http_only`. The hub knows `strangers`, which never
    come."""
    leaf_port = free_port()
    members = [plan.member(directory, f"edge-{number}") for number in range(1, strangers + 2)]
    tomls = [plan.leaf_toml(member, leaf_port) for member in members]
    if http_only:
        tomls = [toml[: toml.rindex('[[input]]\ntype = "file"')] for toml in tomls]
    leaves = [Agent(member, toml) for member, toml in zip(members, tomls, strict=True)]
    enrolled = [CliRunner().invoke(app, ["enrol", "-c", str(leaf.member.config)]).stdout for leaf in leaves]
    member = plan.member(directory, "hub")
    hub = Agent(member, plan.hub_toml(member, leaf_port, enrolled))
    try:
        yield hub, leaves[0]
    finally:
        leaves[0].close()
        hub.close()


@contextmanager
def leaf_with(directory: Path, options: str) -> Iterator[Agent]:
    """A leaf that runs with one input of these options, at its `http_port`; its hub does not run."""
    member = plan.member(directory, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    leaf = Agent(member, f'{base}[[input]]\nlisten = "127.0.0.1:{member.http_port}"\n{options}\n')
    try:
        leaf.start()
        yield leaf
    finally:
        leaf.close()


class Supervisor:
    """Listens below a directory, or without a path (an abstract socket) when that is None."""

    def __init__(self, directory: Path | None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(WAIT_SECONDS)
        self.address = f"@petiole-{os.getpid()}-{id(self)}" if directory is None else f"{directory}/notify"
        self._socket.bind(self.address.replace("@", "\0", 1) if directory is None else self.address)
        self.told: list[dict[str, str]] = []

    def next(self) -> dict[str, str]:
        """The next message, as its variables."""
        text = self._socket.recv(4096).decode()
        row = dict(line.split("=", 1) for line in text.splitlines())
        self.told.append(row)
        return row

    def until(self, variable: str, value: str | None = None) -> dict[str, str]:
        """The next message that has this variable, with this value where one is given."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            row = self.next()
            if variable in row and value in (None, row[variable]):
                return row
        raise AssertionError(f"{variable} was not told; told was {self.told}")

    def forget(self) -> None:
        """Keep nothing of what was told so far."""
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            self.told.clear()
        finally:
            self._socket.settimeout(WAIT_SECONDS)

    def close(self) -> None:
        self._socket.close()
