"""Sockets that are listened on, so that they outlive whoever listens while that is started anew: what comes
meanwhile waits in the kernel instead of being refused.

They belong to the process, as its descriptors do: there is one `LISTEN_SOCKETS`. Across an exec they are
handed on by their numbers in an environment variable, which is believed only for sockets that are bound where
it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "PETIOLE_DOORS"


def tcp(host: str, port: int) -> str:
    """The name of where connections to a port come in."""
    return f"tcp://{host}:{port}"


class ListenSockets:
    """All sockets of the process on which parts of it listen, by the name of where."""

    def __init__(self) -> None:
        self._open: dict[str, Sequence[socket.socket]] = {}
        self._kept: dict[str, list[socket.socket]] = {}
        self._leaving: frozenset[str] = frozenset()

    def is_free(self, where: str) -> bool:
        """Whether what is bound there in this process is for whoever listens there next."""
        return where in self._kept or where in self._leaving

    @contextlib.contextmanager
    def leaving(self, wheres: Collection[str]) -> Iterator[None]:
        """Meanwhile take it that whoever listens there now is about to end."""
        self._leaving = frozenset(wheres)
        try:
            yield
        finally:
            self._leaving = frozenset()

    def is_kept(self, where: str) -> bool:
        """Whether there is a socket to take over."""
        return where in self._kept

    def take(self, where: str) -> list[socket.socket]:
        """The sockets that were kept for whoever listens there next; they are the caller's now."""
        return self._kept.pop(where, [])

    @contextlib.contextmanager
    def listening(self, where: str, sockets: Sequence[socket.socket]) -> Iterator[None]:
        """Whoever listens there does so with these."""
        self._open[where] = sockets
        try:
            yield
        finally:
            if self._open.get(where) is sockets:
                del self._open[where]

    def keep(self, wanted: Collection[str]) -> None:
        """Keep what is listened on there now, until it is taken or `close` is called."""
        for where in self._open.keys() & set(wanted):
            if where not in self._kept:
                self._kept[where] = [_another(one) for one in self._open[where]]

    def close(self) -> None:
        """Keep nothing any more."""
        for where in list(self._kept):
            for one in self.take(where):
                one.close()
            _remove(where)

    def hand_on(self, environment: MutableMapping[str, str]) -> None:
        """Let the program that takes the place of this one have what is kept."""
        numbers = {where: [one.fileno() for one in sockets] for where, sockets in self._kept.items()}
        for number in (number for some in numbers.values() for number in some):
            os.set_inheritable(number, True)
        if numbers:
            environment[VARIABLE] = json.dumps(numbers)

    def receive(self, environment: MutableMapping[str, str]) -> None:
        """Keep what the program that had the place of this one has handed on; anything else is let alone."""
        try:
            given = json.loads(environment.pop(VARIABLE, "{}"))
            pairs = [(str(where), int(number)) for where, some in given.items() for number in some]
        except (ValueError, TypeError, AttributeError):
            return
        for where, number in pairs:
            with contextlib.suppress(OSError):
                if _is_bound(where, number):
                    os.set_inheritable(number, False)
                    self._kept.setdefault(where, []).append(socket.socket(fileno=number))


LISTEN_SOCKETS: Final = ListenSockets()


class PortServer:
    """Connections to a port, of which `make` makes protocols; made inside a running loop. What was kept for
    this port is taken over. Give it options of `loop.create_server` besides."""

    def __init__(self, host: str, port: int, make: Callable[[], asyncio.Protocol], **options: Any) -> None:
        self._host, self._port, self._make, self._options = host, port, make, options
        self._servers: list[asyncio.Server] = []
        self._door = contextlib.ExitStack()

    async def open(self) -> int:
        """Listen; returns the port, which is another one than 0. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        where = tcp(self._host, self._port)
        for one in LISTEN_SOCKETS.take(where):
            self._servers.append(await loop.create_server(self._make, sock=one, **self._options))
        if not self._servers:
            self._servers = [await loop.create_server(self._make, self._host, self._port, **self._options)]
        sockets = [one for server in self._servers for one in server.sockets]
        self._door.enter_context(LISTEN_SOCKETS.listening(where, sockets))
        return int(sockets[0].getsockname()[1])

    def close(self) -> None:
        """Take no new connection; those that are there go on."""
        self._door.close()
        for server in self._servers:
            server.close()


def _another(one: socket.socket) -> socket.socket:
    # asyncio's sockets are wrapped and can't be duplicated by themselves.
    return socket.socket(fileno=os.dup(one.fileno()))


def _is_bound(where: str, number: int) -> bool:
    """Whether a descriptor is a socket that is bound where a name says."""
    with socket.socket(fileno=os.dup(number)) as one:
        scheme, _, rest = where.partition("://")
        if one.family == socket.AF_UNIX:
            return scheme in ("unix", "unixgram")
        kind = socket.SOCK_DGRAM if scheme == "udp" else socket.SOCK_STREAM
        return one.type == kind and str(one.getsockname()[1]) == rest.rpartition(":")[2]


def _remove(where: str) -> None:
    """Remove the path of a Unix socket on which nobody listens any more."""
    scheme, _, path = where.partition("://")
    if scheme in ("unix", "unixgram"):
        with contextlib.suppress(OSError):
            Path(path).unlink()
