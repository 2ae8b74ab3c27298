"""Plays docs/getting-started.md, block by block as it stands, but for its ports. No block may fail."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent.demo.loopback import free_port
from tests.harness.wait import WAIT_SECONDS, wait_for

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "getting-started.md"
_BLOCK: Final = re.compile(r"^```(?P<language>toml|sh)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_READY: Final = {"hub.toml": '"event": "ready"', "edge-1.toml": '"state": "flowing"'}
"""What the page has its reader wait for in the log of an agent."""


class FirstHour:
    """The page in a directory, with an environment as after its install block."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.said: list[str] = []
        """What each block printed."""
        self._place = place
        self._environment = dict(environment)

    def play(self, upto: str = "") -> None:
        """Run the blocks between the installation and a heading, the last one where none is named, and end
        what they started."""
        with ExitStack() as servers, ExitStack() as agents:
            # Whatever comes of the rest, no server is left.
            for name in ("hub", "edge-1"):
                servers.callback(self._run, f"petiole server stop -c {name}.toml")
            for language, text in blocks(upto):
                if language == "toml":
                    (self._place / text.split()[1]).write_text(text)
                elif text.startswith("petiole run"):
                    agents.enter_context(self._agent(text))
                elif "pip install" not in text:
                    if text.startswith("petiole server stop"):
                        agents.close()
                    self.done(text)

    def done(self, text: str) -> None:
        """Run a block, which must end well."""
        found = self._run(text)
        assert found.returncode == 0, f"{text}\n{found.stdout}\n{found.stderr}"
        self.said.append(found.stdout)

    def logged(self) -> list[dict[str, Any]]:
        """What the agents logged."""
        return [
            json.loads(line) for log in self._place.glob("*.log") for line in log.read_text().splitlines()
        ]

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a block by a shell that ends at its first error."""
        command = ["bash", "-e", "-o", "pipefail", "-c", text]
        return subprocess.run(
            command, cwd=self._place, env=self._environment, capture_output=True, text=True, check=False
        )

    @contextmanager
    def _agent(self, text: str) -> Iterator[None]:
        """An agent in a terminal of its own, until Ctrl-C; it has said that it is ready."""
        name = text.split()[-1]
        path = self._place / f"{name}.log"
        with (
            path.open("a") as log,
            subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self._place, env=self._environment, stderr=log
            ) as process,
        ):
            try:
                wait_for(partial(_said_or_ended, process, path, _READY[name]), f"{name} is ready")
                assert process.poll() is None, path.read_text()
                yield
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(WAIT_SECONDS) == 0


def _said_or_ended(process: subprocess.Popen[bytes], log: Path, wanted: str) -> bool:
    return wanted in log.read_text() or process.poll() is not None


def blocks(upto: str = "") -> Iterator[tuple[str, str]]:
    """Language and text of each block before a heading, with ports that are free."""
    page = PAGE.read_text().partition(f"\n## {upto}\n" if upto else "\0")[0]
    ports = {port: str(free_port()) for port in set(re.findall(r"127\.0\.0\.1:(\d+)", page))}
    for found in _BLOCK.finditer(page):
        yield found["language"], re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: ports[port[0]], found["text"])


def install_block() -> str:
    return next(text for _, text in blocks() if "pip install" in text)
