"""Real servers of a plant's protocols that are not Python, each in a process of Node beside an agent:
modbus-serial and node-opcua."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo.loopback import free_port
from agent.demo.plan import Member

MODULES = Path(sys.prefix) / "node" / "node_modules"
"""Where deploy/prepare.sh has npm install them."""


class NodeServer:
    """A script beside this file, which needs `module`. It answers each order, a JSON line, with a line, and
    keeps a log in `directory`."""

    def __init__(self, script: str, module: str, directory: Path) -> None:
        self._script = Path(__file__).with_name(script)
        self._module = module
        self.directory = directory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owes = False
        """Whether an order was given that is not answered."""

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
        self._owes = False

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
            self._owes = True
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
            self._owes = False
            return answer

    def is_idle(self) -> bool:
        """Whether it runs and has answered every order."""
        return self._process is not None and self._process.poll() is None and not self._owes

    def _answer(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


_MODBUS_PORTS: dict[Path, int] = {}


class ModbusServer(NodeServer):
    """One server with all units, at a port or on a serial line. Its registers hold their own address until
    they are set; a coil or discrete input is on where the address is odd."""

    def __init__(self, place: int | Path, directory: Path) -> None:
        super().__init__("modbus_server.js", "modbus-serial", directory)
        self._place = place
        self.url = f"tcp://127.0.0.1:{place}" if isinstance(place, int) else f"rtu://{place}"

    def start(self) -> None:
        """Run it; returns when it listens."""
        self.run(str(self._place))

    def set(self, address: int, *words: int) -> None:
        """Set registers of all units from an address on."""
        assert self.order(set=words, address=address) == "done"

    def treat(self, unit: int, *, slow: float = 0.0, refuse: int = 0) -> None:
        """Have a unit answer after so many seconds, or with an exception."""
        assert self.order(unit=unit, slow=int(slow * 1000), refuse=refuse) == "done"

    def forbid(self, address: int) -> None:
        """Refuse every request that touches an address."""
        assert self.order(forbid=address) == "done"

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return int(self.order(requests=True))


def modbus_port(member: Member) -> int:
    """The port of the server that belongs to an agent."""
    return _MODBUS_PORTS.setdefault(member.directory, free_port())


@contextmanager
def modbus_beside(member: Member) -> Iterator[ModbusServer]:
    """That server, as long as the scope lasts."""
    server = ModbusServer(modbus_port(member), member.directory / "modbus")
    server.start()
    try:
        yield server
    finally:
        server.kill()


_OPCUA_SERVERS: dict[Path, OpcuaServer] = {}
_WAITING_OPCUA_SERVERS: list[OpcuaServer] = []
"""Empty ones that run: to load node-opcua takes three seconds of processor time."""


class OpcuaServer(NodeServer):
    """One server, whose variables are below Objects. Their values are gone when it ends."""

    def __init__(self, directory: Path, given: str = "{}") -> None:
        super().__init__("opcua_server.js", "node-opcua-server", directory)
        self._given = given
        self._port = free_port()
        self.url = f"opc.tcp://127.0.0.1:{self._port}"
        self._variables: dict[str, str] = {}
        self._histories: list[str] = []

    @property
    def certificate(self) -> Path:
        """What it shows clients, in PEM; made at its first start."""
        return self.directory / "pki" / "own" / "certs" / "certificate.pem"

    def start(self) -> None:
        """Run it, with the variables that it had; returns when it listens."""
        self.run(str(self._port), str(self.directory), self._given)
        for path, kind in self._variables.items():
            self.declare(path, kind)
        histories, self._histories = self._histories, []
        for path in histories:
            self.keep_history(path)

    def declare(self, path: str, kind: str = "Double") -> None:
        """Make a variable that has no value yet; names of the path are parted by `/`."""
        self._variables[path] = kind
        assert self.order(declare=path.split("/"), kind=kind) == "done"

    def write(self, path: str, value: object = None, status: str = "Good") -> None:
        """Set a variable now."""
        given = {} if value is None else {"value": value}
        assert self.order(write=path.split("/"), status=status, **given) == "done"

    def keep_history(self, path: str) -> None:
        """Keep a history of a variable from now on, which outlives the server. It needs the whole address
        space: `given` has `history`."""
        self._histories.append(path)
        assert self.order(history=path.split("/")) == "done"

    def record(self, path: str, *values: tuple[float, object] | tuple[float, object, str]) -> None:
        """Add times, values and perhaps statuses to the history alone."""
        assert self.order(record=path.split("/"), values=values) == "done"

    def fail_reads(self, status: str, *, after: int = 0, times: int = 1) -> None:
        """Answer so many reads of history with a status, after so many more reads."""
        self.order(reads={"status": status, "after": after, "times": times})

    @property
    def reads(self) -> int:
        """How many reads of history there were."""
        return int(self.order(reads={}))

    def make_alarm(self, path: str, high: float) -> None:
        """Make an alarm of a variable, which needs the whole address space too."""
        assert self.order(alarm=path.split("/"), high=high) == "done"

    def send_event(self, text: str) -> None:
        """Send an event of the server."""
        assert self.order(event=text) == "done"

    def cut_pages(self, values: int) -> None:
        """Give no more values of a variable at once, without a sign that there are more."""
        assert self.order(page=values) == "done"

    def lag(self, *, on: bool) -> None:
        """Hide values from the history as long as it is on."""
        assert self.order(lag=on) == "done"

    def limit(self, **limits: int) -> None:
        """Take no more than this in one request from now on; the server does not state it."""
        assert self.order(limits=limits) == "done"

    def followed(self, path: str) -> None:
        """Return once a client follows each change of a variable."""
        assert self.order(followed=path.split("/")) == "done"

    def forget(self) -> None:
        """Lose all subscriptions; the values stay."""
        assert self.order(forget=True) == "done"

    def empty(self) -> None:
        """End all sessions and remove all variables."""
        assert self.order(empty=True) == "done"
        self._variables.clear()

    def beat(self, seconds: float) -> None:
        """Set every variable to a new number each so many seconds."""
        assert self.order(beat=round(seconds * 1000)) == "done"


def opcua_server(member: Member) -> OpcuaServer:
    """The server that belongs to an agent."""
    if member.directory not in _OPCUA_SERVERS:
        _OPCUA_SERVERS[member.directory] = _empty_server(member.directory / "opcua")
    return _OPCUA_SERVERS[member.directory]


@contextmanager
def opcua_beside(member: Member) -> Iterator[OpcuaServer]:
    """That server with the variables `n`, `noise` and `wave` of a line, as long as the scope lasts."""
    with _running(opcua_server(member)) as server:
        try:
            for name, kind in {"n": "Double", "noise": "String", "wave": "String"}.items():
                server.declare(f"Line1/{name}", kind)
            yield server
        finally:
            del _OPCUA_SERVERS[member.directory]


@contextmanager
def open_opcua(directory: Path) -> Iterator[OpcuaServer]:
    """A server of no agent, without variables, as long as the scope lasts."""
    with _running(_empty_server(directory)) as server:
        yield server


def _empty_server(directory: Path) -> OpcuaServer:
    """One that waits for its next user, else a new one that does not run yet."""
    return _WAITING_OPCUA_SERVERS.pop() if _WAITING_OPCUA_SERVERS else OpcuaServer(directory)


@contextmanager
def _running(server: OpcuaServer) -> Iterator[OpcuaServer]:
    """The server runs as long as the scope lasts, and then waits for its next user. It ends when this process
    does, which closes its standard input."""
    if not server.is_idle():
        server.start()
    try:
        yield server
    finally:
        if server.is_idle():
            server.empty()
            _WAITING_OPCUA_SERVERS.append(server)
        else:
            server.kill()
