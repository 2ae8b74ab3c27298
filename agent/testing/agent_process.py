"""Runs `petiole run` with an embedded server, and waits for conditions within generous bounds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from agent.demo.plan import Member
from agent.leaf.link.room import ALL_HELD
from agent.server.child import process_of

PETIOLE: Final = str(Path(sys.executable).parent / "petiole")
WAIT_SECONDS: Final = 90.0
_ANY: Final = "the condition holds"
_POLL_SECONDS: Final = (0.01, 0.05)
"""Between checks: at first, and in long waits."""
_LOG_END: Final = 4000
_RELOADED: Final = b"configuration reloaded"
_REJECTED: Final = b"configuration rejected"
_RESTARTS: Final = b"the agent restarts"
_STARTED: Final = b'"event": "started"'


async def until(
    holds: Callable[[], bool | Awaitable[bool]], condition: str = _ANY, seconds: float = WAIT_SECONDS
) -> None:
    """Wait for a plain or async check; fails the test after `seconds`."""
    pause = _pauses(condition, seconds)
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(next(pause))


def wait_for(holds: Callable[[], bool], condition: str = _ANY, seconds: float = WAIT_SECONDS) -> None:
    """Wait for a check; fails the test after `seconds`."""
    pause = _pauses(condition, seconds)
    while not holds():
        time.sleep(next(pause))


def _pauses(condition: str, seconds: float) -> Iterator[float]:
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < seconds:
        yield min(max(waited / 10, _POLL_SECONDS[0]), _POLL_SECONDS[1])
    raise AssertionError(f"not within {seconds:.0f} s: {condition}")


class AgentProcess:
    """An agent's configuration and process."""

    def __init__(self, member: Member, toml: str) -> None:
        self.member = member
        member.directory.mkdir(parents=True, exist_ok=True)
        member.config.write_text(toml)
        self.process: subprocess.Popen[str] | None = None
        self.under: tuple[str, ...] = ()
        """Command prefix of its processes."""

    @property
    def log(self) -> Path:
        """The log of all runs."""
        return self.member.directory / "agent.log"

    def petiole(self, *command: str, seconds: float = WAIT_SECONDS) -> subprocess.CompletedProcess[str]:
        arguments = [*self.under, PETIOLE, *command, "-c", str(self.member.config)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False)

    def launch(self) -> None:
        """Run it without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.under, PETIOLE, "run", "-c", str(self.member.config)], stderr=log, text=True
            )

    def start(self) -> None:
        """Run it until ready; fails the test with the log if it ends."""
        self.launch()
        wait_for(lambda: self._has_ended() or self.is_ready(), "the agent is ready")
        assert not self._has_ended(), f"the agent has ended: {self._said()}"

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def reload(self, toml: str) -> None:
        """Write a configuration; returns once applied and ready."""
        assert self.process is not None
        begin = self.log.stat().st_size
        self.member.config.write_text(toml)
        self.process.send_signal(signal.SIGHUP)

        def said(event: bytes) -> bool:
            return event in self.log.read_bytes()[begin:]

        wait_for(lambda: said(_RELOADED) or said(_REJECTED), "the configuration is read again")
        assert not said(_REJECTED), self._said()
        if said(_RESTARTS):
            wait_for(lambda: said(_STARTED), "the agent has started again")
        wait_for(self.is_ready, "the agent is ready")

    def is_ready(self) -> bool:
        """Tell whether it works, even with full classes."""
        try:
            with urllib.request.urlopen(self.member.admin_url + "/readyz", timeout=WAIT_SECONDS):
                return True
        except urllib.error.HTTPError as refusal:
            return refusal.read().startswith(ALL_HELD.encode())
        except OSError:
            return False

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
        """Return the sum of matching samples."""
        # Its lines alone: tests ask many times, and all of them take a hundred times as long to parse.
        lines = [line for line in self._read("/metrics").decode().splitlines(True) if line.startswith(name)]
        return sum(
            sample.value
            for family in text_string_to_metric_families("".join(lines))
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _read(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(self.member.admin_url + path, timeout=WAIT_SECONDS) as answer:
                body: bytes = answer.read()
        except OSError as error:
            state = "has ended" if self._has_ended() else "runs"
            raise AssertionError(
                f"{path}: {error}; the agent {state}, its log ends: {self._said()}"
            ) from error
        return body

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _said(self) -> str:
        return self.log.read_text()[-_LOG_END:] if self.log.exists() else ""

    def close(self) -> None:
        """End agent and server, and print the log's end for pytest."""
        print(f"-- {self.log}", self._said(), sep="\n")
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if (server := self.server()) is not None:
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: self.server() != server, "its server has ended")
