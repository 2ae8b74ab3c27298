"""The input `socket`: programs send lines, over TCP, UDP, or a Unix socket of streams or datagrams.

Over a stream a sender is slowed as soon as its readings can't be stored as fast as they come: no more is read
of a connection than its share of `buffer` until that was stored. With `reply` (`groups.py`) it is answered,
and what it repeats under a key is stored once. Datagrams (`datagrams.py`) are read as long as they can be
stored. docs/inputs.md says what a sender may rely on, and the lines of `reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from agent.base.http_access import is_loopback
from agent.base.listen_sockets import LISTEN_SOCKETS
from agent.base.metrics import Metrics
from agent.leaf.inputs.formats import LEAST_LINE, MAX_LINE, LineParser
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.gatherer import MAX_SHARE, Buffer
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
from agent.leaf.inputs.socket.datagrams import Datagrams, widen
from agent.leaf.inputs.socket.groups import Groups
from agent.leaf.inputs.socket.streams import Flow, StreamConnection, Terms, open_connections
from agent.leaf.intake import Intake


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
        if not LEAST_LINE <= options.line <= MAX_LINE:
            yield f"line is {options.line} bytes; take {LEAST_LINE} bytes to 4MiB"
        elif address.is_stream and options.buffer // options.max_connections < options.line:
            yield (
                f"buffer does not hold a line of {options.line} bytes for each of {options.max_connections} "
                "connections; make it larger, or the others smaller"
            )

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Read until `stopping` is set, then store what was read, and answer what is under way. Raises
        `ConfigError` when the address can't be listened on."""
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
