"""Receiving request bodies within bounds: of each body, of all bodies together, and of time (which the
connection watches)."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from aiohttp import ClientPayloadError, StreamReader
from aiohttp.web import BaseRequest, RequestPayloadError

from agent.base.wait import Pacer
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import HttpError, at_fault, refused, stopped
from agent.leaf.inputs.http.unpack import LEAST, MAX_RATIO, UnpackedTooLargeError, allowance, unpack_parts
from agent.leaf.intake import RefusalReason, RefusedError

_BROKEN: Final = (RequestPayloadError, ClientPayloadError, ConnectionError)


class Body(NamedTuple):
    """A body as its sender meant it, and how many bytes its readings may have."""

    data: bytes
    room: int


def dense(what: str) -> HttpError:
    """413 for a small body of which too much would be made."""
    text = f"{what} more than {MAX_RATIO} times the bytes that came, and more than {LEAST} bytes; send fewer "
    return at_fault(413, "too_large", f"{text}readings at a time", unread=False)


class Hold:
    """The bytes that one request holds of the common bound; given back by `release`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def add(self, count: int, *, unread: bool) -> None:
        """Hold `count` bytes more; raises `HttpError` 503 when all are in use."""
        if self._bodies.held + count > self._bodies.limit:
            full = RefusedError(RefusalReason.BUSY, "too many bodies are under way", 1.0)
            raise refused(full, unread=unread)
        self._bodies.held += count
        self._bytes += count

    def give_back(self, count: int) -> None:
        """Hold `count` bytes less."""
        self._bodies.held -= count
        self._bytes -= count

    def release(self) -> None:
        """Give all of it back."""
        self._bodies.held -= self._bytes
        self._bytes = 0


class Bodies:
    """All bodies under way; `held` of at most `limit` bytes. Once `stopping` is set, a body that is late is
    not its sender's fault."""

    def __init__(self, limit: int, stopping: asyncio.Event) -> None:
        self.limit = limit
        self.held = 0
        self.stopping = stopping

    async def receive(self, request: BaseRequest, asked: RequestHead, hold: Hold, most: int) -> Body:
        """The body of a request, unpacked; its readings may have `most` bytes. Raises `HttpError`."""
        body = await self._read(request, asked, hold)
        room = allowance(len(body), most)
        if asked.encoding is None:
            return Body(body, room)
        limit = allowance(len(body), asked.limit)
        parts, pacer = [], Pacer()
        try:
            for part in unpack_parts(body, asked.encoding, limit):
                hold.add(len(part), unread=False)
                parts.append(part)
                await pacer.give_way()
        except UnpackedTooLargeError:
            if limit == asked.limit:
                raise asked.too_large(unread=False) from None
            raise dense("the body unpacks to") from None
        except ValueError as error:
            raise at_fault(400, "encoding", str(error), unread=False) from None
        return Body(b"".join(parts), room)

    async def _read(self, request: BaseRequest, asked: RequestHead, hold: Hold) -> bytes:
        try:
            if asked.waits:
                await _say_continue(request)
            return await _gather(request.content, asked, hold)
        except TimeoutError:
            if self.stopping.is_set():
                raise stopped() from None
            raise at_fault(408, "timeout", "the body of the request did not come in time") from None
        except _BROKEN as error:
            raise at_fault(400, "not_http", f"the body broke off: {error!s:.200}") from None


async def _gather(content: StreamReader, asked: RequestHead, hold: Hold) -> bytes:
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
