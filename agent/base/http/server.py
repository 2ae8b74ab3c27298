"""Serves rare HTTP questions, one per connection, with bounded connections and times."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final

import structlog

from agent.base.http.framing import HeadReader, HttpRequest, NotHttpError
from agent.base.http.response import Response
from agent.base.listen_sockets import PortServer
from agent.base.wait import timeout, unless

TEXT: Final = "text/plain; charset=utf-8"
_CLOSING: Final = 1.0
"""Seconds for a client's close, and for pending answers at the end."""
_READ: Final = 64 * 1024
_BUSY: Final = Response(503, content_type=TEXT).encode("close")

log = structlog.get_logger("http")


class QuestionServer:
    """Answers every method by `answer` without reading bodies; 503 above `limit` connections.

    Connections, and TLS handshakes, end after `seconds`.
    """

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[HttpRequest], Awaitable[Response]],
        *,
        limit: int,
        seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answer, self._limit, self._seconds = answer, limit, seconds
        handshake = None if tls is None else seconds
        self._port = PortServer(*address, self._make, ssl=tls, ssl_handshake_timeout=handshake)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def open(self) -> int:
        """Listen and return the real port. Raises `OSError`."""
        return await self._port.open()

    async def close(self) -> None:
        """Close; pending answers have a second."""
        self._port.close()
        self._closing.set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_CLOSING)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _make(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(_READ), self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._limit:
            writer.write(_BUSY)
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The deadline ends the connection and not this task: an answer that takes longer to make may be kept
        # for those who ask again.
        deadline = asyncio.get_running_loop().call_later(self._seconds, writer.transport.abort)
        try:
            with contextlib.suppress(OSError):  # of a client that is gone
                await self._exchange(reader, writer)
        finally:
            deadline.cancel()
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request: HttpRequest | None = None
        try:
            request = await unless(self._closing, _read_head(reader))
        except NotHttpError as error:
            response = Response(400, f"{error}\n".encode(), TEXT)
        else:
            if request is None:
                return
            response = await self._respond(request)
        blocks = () if request is not None and request.method == "HEAD" else response.blocks
        for data in chain((response.to(request, ends=True),), blocks):
            if writer.is_closing():  # a transport of uvloop raises RuntimeError then
                return
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof() and not writer.is_closing():
            # What the client still sends is thrown away: in a closed connection it would cause a reset, which
            # may take the answer with it.
            writer.write_eof()
            with contextlib.suppress(TimeoutError):
                async with timeout(_CLOSING):
                    while await reader.read(_READ):
                        pass
        writer.close()
        await writer.wait_closed()

    async def _respond(self, request: HttpRequest) -> Response:
        try:
            return await self._answer(request)
        except Exception as error:
            log.error("request failed", path=request.path, exc_info=error)
            return Response(500, b"an error in the agent; its log says more\n", TEXT)


async def _read_head(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Return the request, None if the client leaves. Raises `NotHttpError`."""
    head = HeadReader()
    while data := await reader.read(_READ):
        if head.feed(data) is not None:
            return head.request()
    return None
