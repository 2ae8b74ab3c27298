"""Addresses to listen on: whether one is free, and what to say when it is not."""

from __future__ import annotations

import errno
import socket
from typing import Final

from agent.base.listen_sockets import LISTEN_SOCKETS, tcp

EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on
"""Hosts that mean every address of a machine."""


def is_free(address: tuple[str, int]) -> bool:
    """Whether a server could listen on this address now; binds for a moment. Raises `OSError` for an address
    that this user or this machine may not have."""
    family, kind, _, _, where = socket.getaddrinfo(
        *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(where)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def obstacle(address: tuple[str, int]) -> str | None:
    """What stands in the way of listening on an address, with a remedy; None when nothing does. What is
    kept for whoever listens next is not in the way."""
    if LISTEN_SOCKETS.is_free(tcp(*address)):
        return None
    try:
        return None if is_free(address) else cannot_listen(address, OSError(errno.EADDRINUSE, ""))
    except OSError as error:
        return cannot_listen(address, error)
    except ValueError as error:  # of a host that the resolver does not take
        return cannot_listen(address, OSError(str(error)))


def cannot_listen(address: tuple[str, int], error: OSError) -> str:
    """Why listening failed, with a remedy."""
    host, port = address
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"{where} may not be used by this user; choose a port above 1023"
    return f"{where} cannot be listened on ({error.strerror or error}); choose an address of this machine"
