"""A link that can be cut without any privilege: a TCP relay between a leaf and its hub."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_STOP_SECONDS = 10.0


class Proxy:
    """A TCP relay on the loopback whose link can be cut or stalled; while it is cut, new connections are
    closed at once."""

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
        """Listen, on a port that `port` then holds."""
        self._server = await asyncio.start_server(self._relay, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection with a reset and refuse new ones."""
        self._cut = True
        self._flowing.set()
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Pass nothing on and close nothing: both ends see a half-open link. What they send meanwhile waits
        in sockets and arrives after `restore`, so this is not loss."""
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
