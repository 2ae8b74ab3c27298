"""Speaks the websocket protocol (RFC 6455) for dialling a leafnode listener, with bounded sizes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct
from typing import Final

from agent.server.http_head import HeadError, read_head

_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_FINAL, _MASKED = 0x80, 0x80
_CONTROL: Final = 8
"""First opcode of control frames."""


class WebSocket:
    """A byte stream in frames; `reader` has received data."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        self._frames, self._writer, self._limit = reader, writer, limit
        self.reader = asyncio.StreamReader(limit)
        self._pump: asyncio.Task[None] | None = None

    async def open(self, host: str, path: str) -> None:
        """Upgrade and start reading. Raises `HeadError`, `OSError` or `EOFError`."""
        key = base64.b64encode(os.urandom(16)).decode()
        self._writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status, headers = await read_head(self._frames)
        proof = base64.b64encode(hashlib.sha1(f"{key}{_GUID}".encode()).digest()).decode()  # noqa: S324 - RFC 6455
        if not status.startswith("101") or headers.get("sec-websocket-accept") != proof:
            raise HeadError(status)
        self._pump = asyncio.create_task(self._read())

    def write(self, data: bytes) -> None:
        self._send(_BINARY, data)

    def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()

    def _send(self, opcode: int, data: bytes) -> None:
        size, mask = len(data), os.urandom(4)
        head = bytes([_FINAL | opcode])
        if size < 126:
            head += bytes([_MASKED | size])
        elif size < 2**16:
            head += bytes([_MASKED | 126]) + struct.pack(">H", size)
        else:
            head += bytes([_MASKED | 127]) + struct.pack(">Q", size)
        whole = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
        self._writer.write(head + mask + masked)

    async def _read(self) -> None:
        """Pass data on until the end or an overlong frame."""
        try:
            while True:
                first, second = await self._frames.readexactly(2)
                size = second & 0x7F
                if size >= 126:
                    form = ">H" if size == 126 else ">Q"
                    (size,) = struct.unpack(form, await self._frames.readexactly(struct.calcsize(form)))
                if size > self._limit or second & _MASKED:
                    raise ValueError("a frame is too long or masked")
                data, opcode = await self._frames.readexactly(size), first & 0x0F
                if opcode == _CLOSE:
                    break
                if opcode == _PING:
                    self._send(_PONG, data)
                elif opcode < _CONTROL:
                    self.reader.feed_data(data)
        except (OSError, EOFError, ValueError) as error:
            if not isinstance(error, EOFError):
                self.reader.set_exception(error)
        self.reader.feed_eof()
