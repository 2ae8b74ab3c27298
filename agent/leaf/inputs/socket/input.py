"""Accepts lines over TCP, UDP and Unix sockets: the input `socket`.

Streams are read within a connection's share of `buffer`, so senders are slowed. With `reply` (`groups.py`)
they are answered. Datagrams wait in the kernel while the store is full; UDP ones beyond its buffer are
dropped and counted. docs/inputs.md describes the guarantees.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

from structlog.typing import FilteringBoundLogger

from agent.base.http.access import is_loopback
from agent.base.listen_sockets import LISTEN_SOCKETS
from agent.base.metrics import Metrics
from agent.contract import MAX_RECEIVED, Letter
from agent.leaf.inputs.formats import LEAST_LINE, MAX_LINE, LineParser
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.gatherer import MAX_SHARE, Buffer, Gatherer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.inputs.socket import (
    Address,
    SocketOptions,
    mode_of,
    obstacles,
    open_socket,
    owner_of,
    parse_listen,
    remove_socket,
)
from agent.leaf.inputs.socket.groups import Groups
from agent.leaf.inputs.socket.streams import Flow, StreamConnection, Terms, open_connections
from agent.leaf.intake import Intake

_LONGEST: Final = 64 * 1024
"""Largest UDP datagram in bytes."""
_READ: Final = 256 * 1024
_AT_A_TIME: Final = 256
_LOOK: Final = 1.0
_FORCE_BUFFER: Final = 33
"""SO_RCVBUFFORCE, needs CAP_NET_ADMIN; socket(7)."""
_MEMINFO: Final = 55
"""SO_MEMINFO: nine numbers, the last counts dropped datagrams (linux/sock_diag.h)."""
_NUMBERS: Final = struct.Struct("9I")


class Datagrams:
    """Reads a bound nonblocking socket. `dropped` receives the kernel's drops."""

    def __init__(
        self,
        socket_: socket.socket,
        buffer: Buffer,
        parser: LineParser,
        submitter: RetryingSubmitter,
        dropped: Callable[[int], None],
    ) -> None:
        self._socket = socket_
        self._submitter = submitter
        self._dropped = dropped
        self._drops = 0
        self._scratch = memoryview(bytearray(_READ))
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._look: asyncio.TimerHandle | None = None
        self.source = Gatherer(buffer, parser, submitter, self._pause, self._resume, lambda: None)
        buffer.join(self.source)

    def start(self) -> None:
        self._resume()
        self._count_drops()

    def stop(self) -> None:
        """Stop reading; earlier data is still stored."""
        if self._stopped:
            return
        self._stopped = True
        if self._look is not None:
            self._look.cancel()
        self._loop.remove_reader(self._socket)
        self._see_drops()
        self.source.flush()

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket)

    def _resume(self) -> None:
        if not self._stopped:
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        scratch, receive, offset, last = self._scratch, self._socket.recvfrom_into, 0, None
        begin = 0
        for _ in range(_AT_A_TIME):
            try:
                size, sender = receive(scratch[offset:], _LONGEST, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except OSError as error:  # what a peer's machine has answered to something sent earlier
                self._submitter.skip("socket", "the socket", str(error))
                break
            if size > _LONGEST:
                self._pass_over(bytes(scratch[offset : offset + MAX_RECEIVED]), size, _origin(sender))
                continue
            if sender != last:
                self._hand_on(begin, offset, last)
                begin, last = offset, sender
            offset += size
            if size and scratch[offset - 1] != 10:
                scratch[offset] = 10
                offset += 1
            if len(scratch) - offset <= _LONGEST:
                break
        self._hand_on(begin, offset, last)

    def _hand_on(self, begin: int, end: int, sender: object) -> None:
        if end > begin:
            self.source.add(bytes(self._scratch[begin:end]), _origin(sender))

    def _pass_over(self, begin: bytes, size: int, origin: str) -> None:
        reason = f"a datagram of more than {_LONGEST} bytes"
        self.source.dead_letter("too_long", [Letter(begin, origin, reason, size)])

    def _count_drops(self) -> None:
        self._see_drops()
        self._look = self._loop.call_later(_LOOK, self._count_drops)

    def _see_drops(self) -> None:
        drops = _NUMBERS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _MEMINFO, _NUMBERS.size))[-1]
        if drops != self._drops:
            self._dropped((drops - self._drops) % 2**32)
            self._drops = drops


def widen(socket_: socket.socket, size: int, log: FilteringBoundLogger) -> None:
    """Set the kernel's receive buffer to `size` bytes, or its maximum."""
    with contextlib.suppress(OSError):
        socket_.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, size)
    if socket_.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < size:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    # The kernel doubles what it is given and says so; what it needs beside a datagram is its own half.
    granted = socket_.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    if granted < size:
        log.warning(
            f"the kernel keeps {granted} bytes of waiting datagrams, not {size}; raise net.core.rmem_max"
        )


def _origin(sender: object) -> str:
    if isinstance(sender, tuple):
        return f"{sender[0]}:{sender[1]}"
    return f"{sender!r}" if sender else "a datagram"


class SocketInput(ConfiguredInput[SocketOptions]):
    def __init__(self, options: SocketOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._log = self._log.bind(listen=options.listen)

    def _obstacles(self) -> Iterator[str]:
        try:
            address = parse_listen(self._options.listen)
        except ValueError:
            return  # a problem of the options
        yield from obstacles(address)
        if address.is_path:
            try:
                owner_of(self._options)
            except ValueError as error:
                yield str(error)

    def _mistakes(self) -> Iterator[str]:
        options = self._options
        try:
            address = parse_listen(options.listen)
        except ValueError as error:
            yield f'listen: {error}; write it as "tcp://127.0.0.1:8094" or "unix:///run/petiole/lines.sock"'
            return
        if address.is_path:
            try:
                mode_of(options)
            except ValueError as error:
                yield str(error)
        if options.reply and not address.is_stream:
            yield f"reply is for streams, and {address.scheme} has no connections; leave it out"
        yield from options.line_problems()
        if not LEAST_LINE <= options.line <= MAX_LINE:
            yield f"line is {options.line} bytes; take {LEAST_LINE} bytes to 4MiB"
        elif address.is_stream and options.buffer // options.max_connections < options.line:
            yield (
                f"buffer does not hold a line of {options.line} bytes for each of {options.max_connections} "
                "connections; make it larger, or the others smaller"
            )

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Read until `stopping`, then store and answer the rest. Raises `ConfigError` for an unusable
        address.
        """
        options, address = self._options, parse_listen(self._options.listen)
        self._warn(address)
        submitter = RetryingSubmitter(options, self._metrics, intake, stopping, self._log)
        parser = options.parser(intake.domain)
        with _opened(address, options) as listening:
            if address.is_stream:
                await self._serve_streams(address, listening, submitter, parser, intake, stopping)
            else:
                if address.scheme == "udp":
                    widen(listening, options.receive_buffer, self._log)
                await self._read_datagrams(listening, submitter, parser, stopping)
        submitter.end()

    def _warn(self, address: Address) -> None:
        if not address.is_path and not is_loopback(address.host):
            self._log.warning(
                "any program that reaches this address may send readings; listen on loopback, or use "
                "the input http with a token"
            )

    async def _read_datagrams(
        self,
        listening: socket.socket,
        submitter: RetryingSubmitter,
        parser: LineParser,
        stopping: asyncio.Event,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            buffer = Buffer(self._options.buffer, group)
            dropped = self._metrics.dropped.labels(self.name)
            datagrams = Datagrams(listening, buffer, parser, submitter, dropped.inc)
            datagrams.start()
            try:
                await stopping.wait()
            finally:
                datagrams.stop()

    async def _serve_streams(
        self,
        address: Address,
        listening: socket.socket,
        submitter: RetryingSubmitter,
        parser: LineParser,
        intake: Intake,
        stopping: asyncio.Event,
    ) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        show_count = self._metrics.input_connections.labels(self.name).set
        terms = Terms(submitter, options.max_connections, options.line, options.idle, show_count)
        async with open_connections(terms, options.buffer) as connections:

            def make() -> StreamConnection:
                if options.reply:
                    limit = min(MAX_SHARE, options.buffer // options.max_connections)
                    return Groups(connections, parser, options, intake, limit)
                return Flow(connections, parser)

            serve = loop.create_unix_server if address.is_path else loop.create_server
            server = await serve(make, sock=listening)
            try:
                await stopping.wait()
            finally:
                server.close()


@contextlib.contextmanager
def _opened(address: Address, options: SocketOptions) -> Iterator[socket.socket]:
    listening = open_socket(address, options)
    inode = address.path.lstat().st_ino if address.is_path else 0
    try:
        with LISTEN_SOCKETS.listening(address.text, [listening]):
            yield listening
    finally:
        listening.close()
        if address.is_path and not LISTEN_SOCKETS.is_kept(address.text):
            remove_socket(address.path, inode)
