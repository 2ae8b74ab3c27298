"""Ports of the loopback for servers that a demonstration, a test or a benchmark is about to start.

A free port that is released again may be taken by the time the server starts. So every process reserves a
block of ports, below those that the system gives to connections, and hands them out in turn. While it
lives, no connection and no other process that uses this module gets one of them.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle

_FIRST, _BLOCK, _BLOCKS = 12_000, 200, 100  # up to 32,000; connections begin at 32,768


class NoPortError(OSError):
    """Every block is taken, or every port of this process's block."""


def free_port() -> int:
    """A port of 127.0.0.1 that is free now and that no other caller gets before this process
    has gone through its whole block. Raises `NoPortError`."""
    ports = _block()
    for port in (next(ports) for _ in range(_BLOCK)):
        with socket.socket() as sock:
            # As servers do: connections of an earlier server that still wait for their end are no hindrance.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if _bound(sock, port):
                return port
    raise NoPortError("all ports of this process's block are in use")


@cache
def _block() -> Iterator[int]:
    """The ports of a block whose first one this process keeps bound, which makes the block its own."""
    blocks = range(_FIRST, _FIRST + _BLOCK * _BLOCKS, _BLOCK)
    for first in random.sample(blocks, _BLOCKS):
        with socket.socket() as guard:
            if _bound(guard, first):
                guard.detach()  # open as long as the process lives
                return cycle(range(first + 1, first + _BLOCK))
    raise NoPortError(f"all {_BLOCKS} blocks of ports are taken by other processes")


def _bound(sock: socket.socket, port: int) -> bool:
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
