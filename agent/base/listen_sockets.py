"""Keeps listening sockets open while listeners restart, and explains unavailable addresses.

Connections meanwhile wait in the kernel. There is one `LISTEN_SOCKETS` per process. Across an exec,
descriptors pass in an environment variable and are checked against their address.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on
"""Hosts that mean all addresses."""
VARIABLE: Final = "PETIOLE_DOORS"


def tcp(host: str, port: int) -> str:
    """Return a TCP address's name in `LISTEN_SOCKETS`."""
    return f"tcp://{host}:{port}"


class ListenSockets:
    """All listening sockets by address: in use and kept."""

    def __init__(self) -> None:
        self._open: dict[str, Sequence[socket.socket]] = {}
        self._kept: dict[str, list[socket.socket]] = {}
        self._leaving: frozenset[str] = frozenset()

    def is_free(self, where: str) -> bool:
        """Tell whether an address is kept for the next listener."""
        return where in self._kept or where in self._leaving

    @contextlib.contextmanager
    def leaving(self, wheres: Collection[str]) -> Iterator[None]:
        """Treat these addresses as free within the scope."""
        self._leaving = frozenset(wheres)
        try:
            yield
        finally:
            self._leaving = frozenset()

    def is_kept(self, where: str) -> bool:
        return where in self._kept

    def take(self, where: str) -> list[socket.socket]:
        """Return kept sockets; the caller owns them."""
        return self._kept.pop(where, [])

    @contextlib.contextmanager
    def listening(self, where: str, sockets: Sequence[socket.socket]) -> Iterator[None]:
        """Mark sockets as in use within the scope."""
        self._open[where] = sockets
        try:
            yield
        finally:
            if self._open.get(where) is sockets:
                del self._open[where]

    def keep(self, wanted: Collection[str]) -> None:
        """Keep these addresses' sockets until taken or closed."""
        for where in self._open.keys() & set(wanted):
            if where not in self._kept:
                self._kept[where] = [_another(socket_) for socket_ in self._open[where]]

    def close(self) -> None:
        """Close all kept sockets."""
        for where in list(self._kept):
            for socket_ in self.take(where):
                socket_.close()
            _remove(where)

    def pass_fds(self, environment: MutableMapping[str, str]) -> None:
        """Pass kept sockets across an exec."""
        numbers = {where: [socket_.fileno() for socket_ in sockets] for where, sockets in self._kept.items()}
        for number in (number for each in numbers.values() for number in each):
            os.set_inheritable(number, True)
        if numbers:
            environment[VARIABLE] = json.dumps(numbers)

    def inherit_fds(self, environment: MutableMapping[str, str]) -> None:
        """Keep sockets passed across an exec; ignores others."""
        try:
            given = json.loads(environment.pop(VARIABLE, "{}"))
            pairs = [(str(where), int(number)) for where, numbers in given.items() for number in numbers]
        except (ValueError, TypeError, AttributeError):
            return
        for where, number in pairs:
            with contextlib.suppress(OSError):
                if _is_bound(where, number):
                    os.set_inheritable(number, False)
                    self._kept.setdefault(where, []).append(socket.socket(fileno=number))


LISTEN_SOCKETS: Final = ListenSockets()


class PortServer:
    """A listener that takes kept sockets. `make` returns protocols; `options` are of `loop.create_server`."""

    def __init__(self, host: str, port: int, make: Callable[[], asyncio.Protocol], **options: Any) -> None:
        self._host, self._port, self._make, self._options = host, port, make, options
        self._servers: list[asyncio.Server] = []
        self._door = contextlib.ExitStack()

    async def open(self) -> int:
        """Listen and return the real port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        where = tcp(self._host, self._port)
        for socket_ in LISTEN_SOCKETS.take(where):
            self._servers.append(await loop.create_server(self._make, sock=socket_, **self._options))
        if not self._servers:
            self._servers = [await loop.create_server(self._make, self._host, self._port, **self._options)]
        sockets = [socket_ for server in self._servers for socket_ in server.sockets]
        if not sockets:
            # asyncio and uvloop take a socket that can't be made for a family that the machine lacks.
            self.close()
            raise OSError(
                errno.EMFILE, "no socket could be made: too many open files, or no such address family"
            )
        self._door.enter_context(LISTEN_SOCKETS.listening(where, sockets))
        return int(sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting; open connections continue."""
        self._door.close()
        for server in self._servers:
            server.close()


def near_host(host: str) -> str:
    """Return the local host to reach a server on `host`."""
    if host not in EVERYWHERE:
        return host
    return "::1" if ":" in host else "127.0.0.1"


def host_and_port(host: str, port: int) -> str:
    """Format an address such as `[::1]:4222`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_free(address: tuple[str, int]) -> bool:
    """Tell whether an address can be bound now. Raises `OSError` for a forbidden one."""
    family, kind, _, _, where = socket.getaddrinfo(
        *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def obstacle(address: tuple[str, int]) -> str | None:
    """Return why listening would fail, with remedy, or None. Ignores kept sockets."""
    if LISTEN_SOCKETS.is_free(tcp(*address)):
        return None
    try:
        return None if is_free(address) else cannot_listen(address, OSError(errno.EADDRINUSE, ""))
    except OSError as error:
        return cannot_listen(address, error)
    except ValueError as error:  # of a host that the resolver does not take
        return cannot_listen(address, OSError(str(error)))


def cannot_listen(address: tuple[str, int], error: OSError) -> str:
    """Return why listening failed, with remedy."""
    where = host_and_port(*address)
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"{where} may not be used by this user; choose a port above 1023"
    return f"{where} cannot be listened on ({error.strerror or error}); choose an address of this machine"


def _another(original: socket.socket) -> socket.socket:
    # asyncio's sockets are wrapped and can't be duplicated by themselves.
    return socket.socket(fileno=os.dup(original.fileno()))


def _is_bound(where: str, number: int) -> bool:
    """Tell whether a descriptor is a socket bound to this address."""
    with socket.socket(fileno=os.dup(number)) as bound:
        scheme, _, rest = where.partition("://")
        if bound.family == socket.AF_UNIX:
            return scheme in ("unix", "unixgram")
        kind = socket.SOCK_DGRAM if scheme == "udp" else socket.SOCK_STREAM
        return bound.type == kind and str(bound.getsockname()[1]) == rest.rpartition(":")[2]


def _remove(where: str) -> None:
    scheme, _, path = where.partition("://")
    if scheme in ("unix", "unixgram"):
        with contextlib.suppress(OSError):
            Path(path).unlink()
