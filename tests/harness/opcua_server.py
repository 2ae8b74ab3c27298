"""A real OPC UA server that is not Python, node-opcua, which runs beside an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.demo.plan import Member
from agent.demo.ports import free_port
from tests.harness.node_server import NodeServer

_SERVERS: dict[Path, OpcuaServer] = {}


class OpcuaServer(NodeServer):
    """One server, whose variables are below Objects. Their values are gone when it ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__("opcua_server.js", "node-opcua-server", directory)
        self._port = free_port()
        self.url = f"opc.tcp://127.0.0.1:{self._port}"
        self._variables: dict[str, str] = {}

    @property
    def certificate(self) -> Path:
        """What it shows clients, in PEM; made at its first start."""
        return self.directory / "pki" / "own" / "certs" / "certificate.pem"

    def start(self) -> None:
        """Run it, with the variables that it had; returns when it listens."""
        self.run(str(self._port), str(self.directory))
        for path, kind in self._variables.items():
            self.declare(path, kind)

    def declare(self, path: str, kind: str = "Double") -> None:
        """Make a variable that has no value yet; names of the path are parted by `/`."""
        self._variables[path] = kind
        assert self.order(declare=path.split("/"), kind=kind) == "done"

    def write(self, path: str, value: object = None, status: str = "Good") -> None:
        """Set a variable now."""
        given = {} if value is None else {"value": value}
        assert self.order(write=path.split("/"), status=status, **given) == "done"

    def followed(self, path: str) -> None:
        """Return once a client follows each change of a variable."""
        assert self.order(followed=path.split("/")) == "done"

    def beat(self, seconds: float) -> None:
        """Set every variable to a new number each so many seconds."""
        assert self.order(beat=round(seconds * 1000)) == "done"


def server_of(member: Member) -> OpcuaServer:
    """The server that belongs to an agent."""
    if member.directory not in _SERVERS:
        _SERVERS[member.directory] = OpcuaServer(member.directory / "opcua")
    return _SERVERS[member.directory]


@contextmanager
def server_beside(member: Member) -> Iterator[OpcuaServer]:
    """That server with the variables `n`, `noise` and `wave` of a line, as long as the scope lasts."""
    server = server_of(member)
    server.start()
    try:
        for name, kind in {"n": "Double", "noise": "String", "wave": "String"}.items():
            server.declare(f"Line1/{name}", kind)
        yield server
    finally:
        server.kill()
        del _SERVERS[member.directory]
