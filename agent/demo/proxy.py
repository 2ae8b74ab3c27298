"""A TCP relay that can be cut: what stands between a leaf and its hub when a link is to fail."""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK = 64 * 1024


class Proxy:
    """Relays a port of its own to `target`, a port on loopback. While cut it closes and refuses every
    connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._open = True
        self.port = 0

    async def start(self) -> None:
        """Listen on a port that the system picks."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._open = False
        for relay in self._relays:
            relay.cancel()

    def restore(self) -> None:
        """Let new connections through again."""
        self._open = True

    async def stop(self) -> None:
        """Stop listening and break every connection."""
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            if self._open:
                await self._through(reader, writer)
        self._relays.discard(task)
        writer.transport.abort()

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            far_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
