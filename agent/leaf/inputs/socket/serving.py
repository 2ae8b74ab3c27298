"""One run of a `socket` input: open, serve, and end in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from structlog.typing import FilteringBoundLogger

from agent.base.listen_sockets import LISTEN_SOCKETS
from agent.base.metrics import Metrics
from agent.leaf.inputs.formats.line_formats import make_parser
from agent.leaf.inputs.shared.gatherer import MAX_SHARE, Buffer
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.inputs.socket.address import Address, open_socket, remove_socket
from agent.leaf.inputs.socket.datagrams import Datagrams, widen
from agent.leaf.inputs.socket.groups import Groups
from agent.leaf.inputs.socket.options import SocketOptions, access
from agent.leaf.inputs.socket.streams import Connections, Flow, StreamConnection, Terms
from agent.leaf.intake import Intake


async def serve(
    options: SocketOptions,
    address: Address,
    metrics: Metrics,
    log: FilteringBoundLogger,
    intake: Intake,
    stopping: asyncio.Event,
) -> None:
    """Serve until `stopping` is set, then store what was read, and answer what is under way."""
    submitter = RetryingSubmitter(options, metrics, intake, stopping, log)
    parser = make_parser(
        options.format, intake.domain, precision=options.precision, device_tag=options.device_tag
    )
    with _opened(address, options) as listening:
        if not address.is_stream:
            if address.scheme == "udp":
                widen(listening, options.receive_buffer, log)
            async with asyncio.TaskGroup() as group:
                dropped = metrics.dropped.labels(options.name)
                datagrams = Datagrams(
                    listening, Buffer(options.buffer, group), parser, submitter, dropped.inc
                )
                datagrams.start()
                try:
                    await stopping.wait()
                finally:
                    datagrams.stop()
        else:
            show_count = metrics.input_connections.labels(options.name).set
            terms = Terms(parser, submitter, options.max_connections, options.line, options.idle, show_count)
            await _serve_streams(terms, options, address, listening, intake, stopping)
    submitter.end()


async def _serve_streams(
    terms: Terms,
    options: SocketOptions,
    address: Address,
    listening: socket.socket,
    intake: Intake,
    stopping: asyncio.Event,
) -> None:
    loop = asyncio.get_running_loop()
    connections: Connections | None = None
    try:
        async with asyncio.TaskGroup() as group:
            buffer = Buffer(options.buffer, group)
            connections = connections = Connections(terms, buffer)
            limit = min(MAX_SHARE, options.buffer // options.max_connections)

            def make() -> StreamConnection:
                if options.reply:
                    return Groups(connections, options, intake, limit)
                return Flow(connections)

            if address.is_path:
                server = await loop.create_unix_server(make, sock=listening)
            else:
                server = await loop.create_server(make, sock=listening)
            try:
                await stopping.wait()
            finally:
                server.close()
                connections.stop()
    finally:
        if connections is not None:
            connections.close()


@contextlib.contextmanager
def _opened(address: Address, options: SocketOptions) -> Iterator[socket.socket]:
    listening = open_socket(address, access(options))
    inode = address.path.lstat().st_ino if address.is_path else 0
    try:
        with LISTEN_SOCKETS.listening(address.text, [listening]):
            yield listening
    finally:
        listening.close()
        if address.is_path and not LISTEN_SOCKETS.is_kept(address.text):
            remove_socket(address.path, inode)
