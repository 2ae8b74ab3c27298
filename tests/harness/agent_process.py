"""`petiole run` as a process of its own, with an embedded server; and its supervisor's end of the notify
protocol: a real datagram socket that keeps what it is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from agent.cli.main import app
from agent.demo import plan
from agent.demo.plan import Member
from agent.demo.ports import free_port
from agent.server.child import process_of
from tests.harness.wait import WAIT_SECONDS, wait_for

PETIOLE = str(Path(sys.executable).parent / "petiole")
_LOG_END = 4000


class Agent:
    """One agent's configuration, and the process that runs it."""

    def __init__(self, member: Member, toml: str) -> None:
        self.member = member
        member.directory.mkdir(parents=True, exist_ok=True)
        member.config.write_text(toml)
        self.process: subprocess.Popen[str] | None = None
        self.under: tuple[str, ...] = ()
        """The command that its processes are run under."""

    @property
    def log(self) -> Path:
        """What all its runs have said."""
        return self.member.directory / "agent.log"

    def petiole(self, *command: str, seconds: float = WAIT_SECONDS) -> subprocess.CompletedProcess[str]:
        arguments = [*self.under, PETIOLE, *command, "-c", str(self.member.config)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False)

    def launch(self) -> None:
        """Run it, without a look at what becomes of it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.under, PETIOLE, "run", "-c", str(self.member.config)], stderr=log, text=True
            )

    def start(self) -> None:
        self.launch()
        wait_for(self._is_ready, "the agent is ready")

    def _is_ready(self) -> bool:
        assert self.process is not None
        ended = self.process.poll()
        assert ended is None, f"the agent ended with exit code {ended}, its log: {self._said()}"
        return self.status_of("/readyz") == 200

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def server(self) -> int | None:
        return process_of(self.member.state / "nats" / "nats-server.conf")

    def status_of(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(self.member.admin_url + path, timeout=WAIT_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._read("/status"))
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that have these labels."""
        families = list(text_string_to_metric_families(self._read("/metrics").decode()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _read(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(self.member.admin_url + path, timeout=WAIT_SECONDS) as answer:
                body: bytes = answer.read()
        except OSError as error:
            ended = self.process is not None and self.process.poll() is not None
            state = "has ended" if ended else "runs"
            raise AssertionError(
                f"{path}: {error}; the agent {state}, its log ends: {self._said()}"
            ) from error
        return body

    def _said(self) -> str:
        return self.log.read_text()[-_LOG_END:] if self.log.exists() else ""

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

    def close(self) -> None:
        """End the agent and its server; the end of its log is printed, for pytest shows it of a test that
        fails."""
        print(f"-- {self.log}", self._said(), sep="\n")
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if (server := self.server()) is not None:
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: self.server() != server, "its server has ended")


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
