"""Receiving request bodies within bounds: of each body, of all bodies together, and of time."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import ClientPayloadError, StreamReader
from aiohttp.web import BaseRequest, RequestPayloadError

from agent.inputs.http.answers import at_fault, refused
from agent.inputs.http.asked import Asked
from agent.inputs.http.unpack import UnpackedTooLargeError, unpack
from agent.intake import Reason, RefusedError

_BROKEN: Final = (RequestPayloadError, ClientPayloadError, ConnectionError)


class Hold:
    """The bytes that one request holds of the common bound; given back by `release`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def add(self, count: int, *, unread: bool) -> None:
        """Hold `count` bytes more; raises `Answer` 503 when all are in use."""
        if self._bodies.held + count > self._bodies.limit:
            full = RefusedError(Reason.BUSY, "too many bodies are under way", 1.0)
            raise refused(full, unread=unread)
        self._bodies.held += count
        self._bytes += count

    def release(self) -> None:
        """Give all of it back."""
        self._bodies.held -= self._bytes
        self._bytes = 0


class Bodies:
    """All bodies under way; `held` of at most `limit` bytes. Each must come within `timeout` seconds."""

    def __init__(self, limit: int, timeout: float) -> None:
        self.limit = limit
        self.held = 0
        self._timeout = timeout
        self._stopping = False
        self._receiving: set[asyncio.Timeout] = set()

    def stop(self, grace: float) -> None:
        """Give bodies that are still coming `grace` seconds more; they are answered 503 after that."""
        self._stopping = True
        deadline = asyncio.get_running_loop().time() + grace
        for one in self._receiving:
            one.reschedule(deadline)

    async def receive(self, request: BaseRequest, asked: Asked, hold: Hold) -> bytes:
        """The body of a request, unpacked. Raises `Answer`."""
        body = await self._read(request, asked, hold)
        if asked.encoding is None:
            return body
        try:
            unpacked = unpack(body, asked.encoding, asked.limit)
        except UnpackedTooLargeError:
            raise asked.too_large(unread=False) from None
        except ValueError as error:
            raise at_fault(400, "encoding", str(error), unread=False) from None
        hold.add(len(unpacked), unread=False)
        return unpacked

    async def _read(self, request: BaseRequest, asked: Asked, hold: Hold) -> bytes:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                self._receiving.add(limit)
                if asked.waits:
                    await _say_continue(request)
                return await _gather(request.content, asked, hold)
        except TimeoutError:
            if self._stopping:
                raise refused(RefusedError(Reason.STOPPING, "the agent is stopping"), unread=True) from None
            raise at_fault(408, "timeout", f"the body did not come within {self._timeout:g} s") from None
        except _BROKEN as error:
            raise at_fault(400, "not_http", f"the body broke off: {error!s:.200}") from None
        finally:
            self._receiving.discard(limit)


async def _gather(content: StreamReader, asked: Asked, hold: Hold) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await content.readany():
        size += len(part)
        if size > asked.limit:
            raise asked.too_large()
        hold.add(len(part), unread=True)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _say_continue(request: BaseRequest) -> None:
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
