"""Machines of a hub, each in a network namespace of its own, on one switch from which each can be unplugged:
what it sends then is lost without a word, and its own network device stays up.

Leaves, jobs and tests reach a machine apart from the switch, by the same ports of this machine's loopback: a
process inside the namespace, which is handed the listening sockets, connects them to its own loopback.
Needs root, `ip`, and a kernel with bridges.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from agent.demo.plan import HubMachine
from tests.harness.hub_machines import Place


def missing() -> str | None:
    """Why no switch can be made here, None where one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None if shutil.which("ip") else "ip not installed (apt-get install iproute2)"


class Switch:
    """Machines by the names of their servers, on one network."""

    def __init__(self) -> None:
        self._number = random.randrange(2**12)
        self._bridge = f"sw{self._number}"
        self._places: dict[str, int] = {}
        self._forwarding: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Make it. Raises `RuntimeError` with what a command said."""
        _run("link", "add", self._bridge, "type", "bridge")
        _run("link", "set", self._bridge, "up")

    def close(self) -> None:
        """Take it away with all machines, however much of it there is."""
        for process in self._forwarding:
            process.kill()
            process.wait()
        ends = [("link", "delete", self._bridge)]
        ends += [("netns", "delete", self._space(place)) for place in self._places.values()]
        for command in ends:
            subprocess.run(("ip", *command), capture_output=True, check=False)

    def place(self, machine: HubMachine) -> Place:
        """Plug a machine in."""
        place = self._places[machine.member.domain] = len(self._places) + 1
        space, plug, address = self._space(place), self._plug(place), f"198.19.{self._number % 256}.{place}"
        _run("netns", "add", space)
        _run("link", "add", plug, "type", "veth", "peer", "name", "plug", "netns", space)
        _run("-n", space, "address", "add", f"{address}/24", "dev", "plug")
        for device in ("lo", "plug"):
            _run("-n", space, "link", "set", device, "up")
        _run("link", "set", plug, "up")
        self.plug_in(machine.member.domain)
        under = ("ip", "netns", "exec", space)
        member = machine.member
        self._forward(under, [member.nats_port, member.admin_port, machine.leaf_port])
        return Place(address, under)

    def unplug(self, name: str) -> None:
        """Lose all that a machine and the others send each other."""
        _run("link", "set", self._plug(self._places[name]), "nomaster")

    def plug_in(self, name: str) -> None:
        """Let it through again."""
        _run("link", "set", self._plug(self._places[name]), "master", self._bridge)

    def _forward(self, under: tuple[str, ...], ports: Iterable[int]) -> None:
        listening = {port: socket.create_server(("127.0.0.1", port)) for port in ports}
        told = [f"{port}:{sock.fileno()}" for port, sock in listening.items()]
        command = [*under, sys.executable, "-m", "tests.faults.tools.partition", *told]
        descriptors = [sock.fileno() for sock in listening.values()]
        self._forwarding.append(subprocess.Popen(command, pass_fds=descriptors))
        for sock in listening.values():
            sock.close()

    def _space(self, place: int) -> str:
        return f"sw{self._number}-{place}"

    def _plug(self, place: int) -> str:
        return f"sw{self._number}p{place}"


@contextmanager
def switch() -> Iterator[Switch]:
    """A switch that is taken away with the context."""
    one = Switch()
    try:
        one.open()
        yield one
    finally:
        one.close()


def _run(*command: str) -> None:
    done = subprocess.run(("ip", *command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(command)}: {done.stderr.strip()}")


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other end sees the same
    finally:
        writer.close()


async def _serve(port: int, descriptor: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    server = await asyncio.start_server(connect, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


async def _main(told: Iterable[str]) -> None:
    await asyncio.gather(*(_serve(*map(int, one.split(":"))) for one in told))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
