"""Runs the connections of a `socket` input: number, limits and ends."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from msgspec import Struct

from agent.base.wait import loop_time
from agent.leaf.inputs.formats import LineCutter, LineParser
from agent.leaf.inputs.shared.gatherer import Buffer, GatheredSource, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter, letter

_READ: Final = 256 * 1024
"""Bytes per read, in one buffer for all connections."""
_LEAST: Final = 4096
_HTTP: Final = re.compile(rb"[A-Z]{3,10} \S{0,4096} HTTP/1\.[01]\r?\n").match
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""TCP keepalive after a minute of silence."""
_CREDENTIALS: Final = struct.Struct("3i")


class Terms(Struct, frozen=True):
    """Limits: `most` connections, lines of `line` bytes, end after `idle` seconds. `shown` receives the
    number.
    """

    submitter: RetryingSubmitter
    most: int
    line: int
    idle: float
    shown: Callable[[int], None]


class Connections:
    """The open connections."""

    def __init__(self, terms: Terms, buffer: Buffer) -> None:
        self.terms = terms
        self.buffer = buffer
        self.scratch = memoryview(bytearray(_READ))
        self.stopped = False
        self._open: set[StreamConnection] = set()
        self._look: asyncio.TimerHandle | None = None

    def admit(self, connection: StreamConnection) -> bool:
        """Tell whether another one is allowed."""
        if self.stopped or len(self._open) >= self.terms.most:
            return False
        self._open.add(connection)
        self.buffer.join(connection.source)
        self.terms.shown(len(self._open))
        if self._look is None:
            self._look_at_all()
        return True

    def gone(self, connection: StreamConnection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self.buffer.leave(connection.source)
            self.terms.shown(len(self._open))

    def stop(self) -> None:
        """Stop reading; earlier data is still stored."""
        self.stopped = True
        if self._look is not None:
            self._look.cancel()
        for connection in self._open:
            connection.stop()

    def close(self) -> None:
        """End all connections after their answers."""
        self.stop()
        for connection in list(self._open):
            connection.close()

    def _look_at_all(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - self.terms.idle
        for connection in list(self._open):
            if connection.heard < before and not connection.source.held:
                connection.close()
        self._look = loop.call_later(min(15.0, self.terms.idle / 4), self._look_at_all)


@contextlib.asynccontextmanager
async def open_connections(terms: Terms, buffer: int) -> AsyncIterator[Connections]:
    """Yield connections sharing a buffer; on exit stop reading, store, answer and close."""
    connections: Connections | None = None
    try:
        async with asyncio.TaskGroup() as group:
            connections = Connections(terms, Buffer(buffer, group))
            try:
                yield connections
            finally:
                connections.stop()
    finally:
        if connections is not None:
            connections.close()


class StreamConnection(asyncio.BufferedProtocol):
    source: GatheredSource
    _transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.terms = connections.terms
        self.peer = self.sender = ""
        self.heard = loop_time()
        self._time = asyncio.get_running_loop().time

    @abstractmethod
    def feed(self, data: bytes) -> None:
        pass

    @abstractmethod
    def ended(self) -> bool:
        """Note the sender's end; returns whether an answer is due."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self.peer, self.sender = _peer(self._transport)
        if not self.connections.admit(self):
            text = f"all {self.terms.most} connections are in use"
            self.terms.submitter.skip("connections", self.peer, text)
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connections.scratch[: max(_LEAST, min(_READ, self.source.room))]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = self._time()
        if not self._transport.is_closing():
            self.feed(bytes(self.connections.scratch[:nbytes]))

    def eof_received(self) -> bool:
        return self.ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.gone(self)

    def give_up(self, reason: str, text: str) -> None:
        """End a connection with invalid data."""
        self.terms.submitter.skip(reason, self.peer, text)
        self._transport.abort()

    def say(self, text: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(text)

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing() and not self.connections.stopped:
            self._transport.resume_reading()

    def stop(self) -> None:
        """Stop reading for good."""
        if not self.source.paused:
            self.source.paused = True
            self.pause()

    def close(self) -> None:
        """End after pending answers."""
        self._transport.close()


class LineConnection(StreamConnection):
    """A connection read in whole lines."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._cutter = LineCutter(self.terms.line)
        self._greeted = False

    @abstractmethod
    def take(self, lines: bytes) -> None:
        pass

    @abstractmethod
    def passed_over(self, count: int) -> None:
        pass

    def feed(self, data: bytes) -> None:
        before = self._cutter.too_long
        lines = self._cutter.feed(data)
        if self._cutter.too_long > before:
            self.passed_over(self._cutter.too_long - before)
        if not lines:
            return
        if not self._greeted:
            self._greeted = True
            if _HTTP(lines):
                # A page in a browser on this machine could otherwise post lines to this port.
                self.give_up("http", "this is HTTP, for which there is the input http")
                return
        self.take(lines)


class Flow(LineConnection):
    """A connection without answers, slowed while the store is full."""

    source: Gatherer

    def __init__(self, connections: Connections, parser: LineParser) -> None:
        super().__init__(connections)
        self._is_whole = parser.is_whole
        self.source = Gatherer(
            connections.buffer, parser, self.terms.submitter, self.pause, self.resume, self._garbage
        )

    def take(self, lines: bytes) -> None:
        self.source.add(lines, self.peer)

    def passed_over(self, count: int) -> None:
        reason = f"longer than {self.terms.line} bytes (option line); nothing of it was kept"
        self.source.dead_letter("too_long", [letter(b"", self.peer, reason)] * count)

    def ended(self) -> bool:
        last = self._cutter.end()
        if last and self._is_whole(last):
            self.source.add(last, self.peer)
        elif last:
            reason = "the last line has no newline: it may be a part of one"
            self.source.dead_letter("cut_off", [letter(last[:-1], self.peer, reason)])
        return False

    def stop(self) -> None:
        super().stop()
        self.source.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.source.flush()
        super().connection_lost(exc)

    def _garbage(self) -> None:
        if not self._transport.is_closing():
            self.give_up("garbage", "nothing but lines that are not readings; the connection is closed")


def _peer(transport: asyncio.Transport) -> tuple[str, str]:
    """Return the peer's address and its sender (Unix user or host), and enable TCP keepalive."""
    socket_: Any = transport.get_extra_info("socket")
    if socket_.family == socket.AF_UNIX:
        pid, uid, _ = _CREDENTIALS.unpack(
            socket_.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return f"pid {pid} uid {uid}", f"uid {uid}"
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        socket_.setsockopt(socket.IPPROTO_TCP, option, value)
    host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host
