"""A program of others that runs as a daemon beside a benchmark and can be killed and started again."""

from __future__ import annotations

import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_START_SECONDS: Final = 30.0


@dataclass(slots=True)
class Daemon:
    """One process that listens at a port of this machine; what it prints goes to `log`."""

    command: tuple[str, ...]
    log: Path
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> psutil.Process:
        """The running daemon."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def launch(self) -> None:
        """Start it and do not wait."""
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

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
