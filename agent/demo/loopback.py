"""Provides free ports and a TCP relay on the loopback, which cuts links without privileges.

Each process reserves a port block below the ephemeral range, so that no other gets its ports.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle
from typing import Final

_STOP_SECONDS: Final = 10.0
_FIRST, _BLOCK, _BLOCKS = 12_000, 200, 100  # up to 32,000; connections begin at 32,768


class NoPortError(OSError):
    """No port is left."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not reused before the block is exhausted. Raises `NoPortError`."""
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
    """Yield a block's ports; its first, kept bound, marks ownership."""
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


class LoopbackProxy:
    """A TCP relay that can be cut or stalled; cut, it closes new connections at once."""

    host = "127.0.0.1"

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._cut = False
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def start(self) -> None:
        """Listen on `port`."""
        self._server = await asyncio.start_server(self._relay, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._cut = True
        self._flowing.set()
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing without closing: a half-open link. Data arrives after `restore`."""
        self._flowing.clear()

    def restore(self) -> None:
        self._cut = False
        self._flowing.set()

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        if self._relays:
            await asyncio.wait(self._relays, timeout=_STOP_SECONDS)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        await self._flowing.wait()
        if self._cut:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._open |= ends
        if self._cut:  # since the look above
            self.cut()
        try:
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        await self._flowing.wait()
        writer.transport.abort()
