"""Carries one session between a local server's connection and one line after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from agent.base.wait import loop_time
from agent.server.resume.stream import FRAME_BYTES, Budget, ByteStream

SESSION_SECONDS: Final = 13.0
"""Time that a session lives without a line. The servers themselves close their link 10 to 15 s after a PING
that got no PONG (`ping_interval` 5 s, `ping_max` 2)."""
_ACKNOWLEDGE_SECONDS: Final = 0.04
"""Time in which an acknowledgement waits for data to travel with."""
_ACKNOWLEDGE_BYTES: Final = 8_192
_LAST_SECONDS: Final = 5.0
"""Time for what a local server sent before it closed its connection."""
_READ: Final = 65_536

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Session:
    """One end of a session; `pull` and `carry` run at the same time."""

    def __init__(self, server: Pair, budget: Budget) -> None:
        self._reader, self._writer = server
        self.stream = ByteStream(budget)
        self._room, self._more = asyncio.Event(), asyncio.Event()
        self._line: asyncio.StreamWriter | None = None
        self._watch: asyncio.TimerHandle | None = None
        self.closed = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to carry."""
        return self.closed or self.stream.ended or self.stream.other_ended

    async def pull(self) -> None:
        """Read from the local server until it closes its connection."""
        with suppress(OSError):
            while True:
                self._room.clear()
                if (room := self.stream.room()) <= 0:
                    await self._room.wait()
                    continue
                data = await self._reader.read(min(room, _READ))
                if not data:
                    break
                self.stream.write(data)
                self._more.set()
        self.stream.ended = True
        self._more.set()
        # A dead line does not acknowledge the end.
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self.drop_line)

    def drop_line(self) -> None:
        """Abort the present connection."""
        if self._line is not None:
            self._line.transport.abort()

    def close(self) -> None:
        """End the session: the local server links again."""
        self.closed = True
        self.drop_line()
        self._writer.transport.abort()
        self.stream.release()

    async def carry(
        self, line: Pair, answered: Callable[[asyncio.StreamReader], Awaitable[None]] | None = None
    ) -> None:
        """Carry bytes over a connection until it breaks or the session is over; `answered` reads the bytes
        before the first frame. Raises `ProtocolError`.
        """
        reader, self._line = line
        writer = self._line

        async def receive() -> None:
            if answered is not None:
                await answered(reader)
                self._room.set()
                self._more.set()
            await self._receive(reader)

        tasks = [asyncio.create_task(part) for part in (self._send(writer), receive())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (OSError, EOFError):
            pass  # the line broke
        finally:
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.transport.abort()
            self._line = None

    def _look(self) -> None:
        """Drop a dead line; look again only while bytes wait for an acknowledgement."""
        left = self.stream.dead_in(loop_time())
        if left is not None and left <= 0:
            self.drop_line()
        elif left is not None:
            self._watch = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._watch = None

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._more.clear()
            frame = self.stream.take(loop_time())
            if self._watch is None:
                self._look()
            if frame:
                put(writer, frame)
                self._room.set()
                await writer.drain()
            else:
                await self._more.wait()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while not self.stream.other_ended:
            left = self.stream.read(await reader.readexactly(FRAME_BYTES), loop_time())
            self._room.set()
            while left:
                data = await reader.read(left)
                if not data:
                    return
                left -= len(data)
                if found := self.stream.accept(data, loop_time()):
                    put(self._writer, found)
                    if self.stream.owed >= _ACKNOWLEDGE_BYTES:
                        self._more.set()
                    else:
                        loop.call_later(_ACKNOWLEDGE_SECONDS, self._more.set)
                    await self._writer.drain()


def put(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write to an open connection. Raises `ConnectionResetError` for a closed one, where uvloop 0.23 raises
    `RuntimeError` (`UVHandle._ensure_alive`).
    """
    if writer.transport.is_closing():
        raise ConnectionResetError("the connection is closed")
    writer.write(data)
