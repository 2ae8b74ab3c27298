"""A real Modbus server that is not Python, modbus-serial, which runs beside an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.demo.plan import Member
from agent.demo.ports import free_port
from tests.harness.node_server import NodeServer

_PORTS: dict[Path, int] = {}


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
    return _PORTS.setdefault(member.directory, free_port())


@contextmanager
def modbus_beside(member: Member) -> Iterator[ModbusServer]:
    """That server, as long as the scope lasts."""
    server = ModbusServer(modbus_port(member), member.directory / "modbus")
    server.start()
    try:
        yield server
    finally:
        server.kill()
