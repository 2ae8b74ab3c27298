"""A supervisor's end of the notify protocol: a real datagram socket that keeps what it is told."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tests.harness.wait import WAIT_SECONDS


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
