"""`petiole run` as a process of its own, with an embedded server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from agent.demo.plan import Member
from agent.server.probe import process_of

PETIOLE = str(Path(sys.executable).parent / "petiole")
WAIT_SECONDS = 30.0


class Agent:
    """One agent's configuration, and the process that runs it."""

    def __init__(self, member: Member, toml: str) -> None:
        self.member = member
        member.directory.mkdir(parents=True, exist_ok=True)
        member.config.write_text(toml)
        self.process: subprocess.Popen[str] | None = None

    def petiole(self, *command: str) -> subprocess.CompletedProcess[str]:
        arguments = [PETIOLE, *command, "-c", str(self.member.config)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [PETIOLE, "run", "-c", str(self.member.config)], stderr=subprocess.DEVNULL, text=True
        )
        wait_for(lambda: self.status_of("/readyz") == 200, "the agent is ready")

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def server(self) -> int | None:
        return process_of(self.member.state / "nats" / "nats-server.conf")

    def status_of(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(self.member.admin_url + path, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except OSError:
            return None

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.member.admin_url + "/status", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric that have these labels."""
        with urllib.request.urlopen(self.member.admin_url + "/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

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
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.server() is not None:
            self.petiole("server", "stop")


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)
