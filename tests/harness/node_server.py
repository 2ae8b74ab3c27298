"""A server of a plant's protocol in a process of Node: it answers each order, a JSON line, with a line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

MODULES = Path(sys.prefix) / "node" / "node_modules"
"""Where deploy/prepare.sh has npm install them."""


class NodeServer:
    """A script beside this file, which needs `module`; it keeps a log in `directory`."""

    def __init__(self, script: str, module: str, directory: Path) -> None:
        self._script = Path(__file__).with_name(script)
        self._module = module
        self.directory = directory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(self, *arguments: str) -> None:
        """Run it; returns when it is ready."""
        node = shutil.which("node")
        if node is None or not (MODULES / self._module).is_dir():
            pytest.skip(
                f"{self._module} is missing; install npm, remove .venv/ready, and run: make .venv/ready"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [node, self._script, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PETIOLE_NODE_MODULES": str(MODULES)},
            )
        assert self._answer() == "ready"

    def kill(self) -> None:
        """Kill it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def order(self, **order: object) -> str:
        """Give an order; returns its answer."""
        with self._lock:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
