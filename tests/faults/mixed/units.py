"""What supervises the processes of a round, as systemd does with the units that are shipped: each is started
again a second after it has ended, but not after exit code 2."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.base.nats_server import find_binary
from agent.contract import Exit
from tests.faults.world.machine import Machine
from tests.harness.wait import following

_RESTART_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_BEGINS_US = 3_000_000
"""So long an agent takes to begin, and to look."""


class Unit:
    """One process. While it is `held`, nobody starts it; `usable` says whether exit code 2 is what it should
    end with now."""

    def __init__(
        self,
        name: str,
        code: Callable[[], int | None],
        begin: Callable[[], None],
        usable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self.held = name, False
        self.left: list[str] = []
        """Ends after which it is not started again, though its configuration is good."""
        self._code, self._begin, self._usable = code, begin, usable
        self._ended: float | None = None

    def look(self) -> None:
        """Start it again where it is time."""
        code = self._code()
        if code is None or self.held:
            self._ended = None
            return
        if self._ended is None:
            self._ended = time.monotonic()
            if code == Exit.USAGE and self._usable():
                self.left.append(f"{self.name} ended with exit code 2: its supervisor starts it no more")
        if self._usable() and not self.left and time.monotonic() - self._ended >= _RESTART_SECONDS:
            self._ended = None
            self._begin()


class Supervisor:
    """All of them. `watches` says whether an agent is there that may look at its stream; when it was not, in
    microseconds since 1970, stands in `blind`."""

    def __init__(self, units: Sequence[Unit], watches: Callable[[], bool]) -> None:
        self.units, self._watches = units, watches
        self.blind: list[tuple[int, int]] = []
        self._ending = threading.Event()

    def follow(self) -> None:
        """Look until told to end."""
        while not self._ending.wait(_LOOK_SECONDS):
            for one in self.units:
                one.look()
            if not self._watches():
                now = time.time_ns() // 1000
                self.blind.append((now, now + _BEGINS_US))

    def end(self) -> None:
        """Look no more."""
        self._ending.set()


@contextmanager
def supervised(units: Sequence[Unit], watches: Callable[[], bool]) -> Iterator[Supervisor]:
    """These run as long as the context lasts."""
    with following(Supervisor(units, watches)) as one:
        yield one


class OwnServer(Machine):
    """A leaf whose server is a unit of its own, with the `configuration` that was rendered for it."""

    configuration: Path
    _server: subprocess.Popen[bytes] | None = None

    def begin_server(self) -> None:
        """Run the server."""
        with (self.member.directory / "nats-server.out").open("ab") as out:
            command = [str(find_binary()), "-c", str(self.configuration)]
            self._server = subprocess.Popen(command, stdout=out, stderr=out)

    def server_code(self) -> int | None:
        """How the server ended, None while it runs."""
        assert self._server is not None
        return self._server.poll()

    def server(self) -> int | None:
        if self._server is None or self._server.poll() is not None:
            return None
        return self._server.pid

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        super().close()


def agent_code(machine: Machine) -> int | None:
    """How an agent ended, None while it runs."""
    assert machine.process is not None
    return machine.process.poll()
