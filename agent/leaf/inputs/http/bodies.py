"""Unpacks bodies within bounds of each body and of all bodies together. A body of a few kilobytes may unpack
to gigabytes. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import zstandard

from agent.base.wait import Pacer
from agent.leaf.inputs.http.limits import LEAST, MAX_RATIO
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import HttpError, at_fault, refused
from agent.leaf.intake import RefusalReason, RefusedError

_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_STEP: Final = 64 * 1024
"""Bytes fed to gzip at a time."""
_GZIP_PART: Final = 2**20
"""Bytes that are unpacked from them at a time."""
_ZSTD_STEP: Final = 256
"""Bytes fed to zstd at a time. A block of four bytes may hold 128 KiB, so a step yields at most 8 MiB."""
_ZSTD_WINDOW: Final = 8 * 2**20
"""What every decoder must support (RFC 8878, 3.1.1.1.2); a larger one is memory at the sender's choice."""
_MAX_FRAMES: Final = 4096
"""An empty frame of zstd is nine bytes, and costs as much as one of a kilobyte."""


class Body(NamedTuple):
    """An unpacked body, and the most bytes of its readings."""

    data: bytes
    room: int


class Bodies:
    """All bodies under way; `held` of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Hold:
    """The bytes that the request under way of one connection holds of the common bound; given back by
    `release`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def add(self, count: int, *, unread: bool) -> None:
        """Hold `count` bytes more; raises `HttpError` 503 when all are in use."""
        if self._bodies.held + count > self._bodies.limit:
            full = RefusedError(RefusalReason.BUSY, "too many bodies are under way")
            raise refused(full, unread=unread)
        self._bodies.held += count
        self._bytes += count

    def give_back(self, count: int) -> None:
        """Hold `count` bytes less."""
        self._bodies.held -= count
        self._bytes -= count

    def release(self) -> None:
        """Hold nothing more."""
        self._bodies.held -= self._bytes
        self._bytes = 0


def dense(subject: str) -> HttpError:
    """Return a 413 for a small body that unpacks to too much."""
    text = (
        f"{subject} more than {MAX_RATIO} times the bytes that came, and more than {LEAST} bytes; send fewer "
    )
    return at_fault(413, "too_large", f"{text}readings at a time", unread=False)


async def unpacked(body: bytes, head: RequestHead, hold: Hold) -> Body:
    """Return the unpacked body. Raises `HttpError`."""
    limit, room = head.limits.of(len(body))
    if head.encoding is None:
        return Body(body, room)
    parts, pacer = [], Pacer()
    try:
        for part in unpack_parts(body, head.encoding, limit):
            hold.add(len(part), unread=False)
            parts.append(part)
            await pacer.give_way()
    except UnpackedTooLargeError:
        if limit == head.limits.body:
            raise head.too_large(unread=False) from None
        raise dense("the body unpacks to") from None
    except ValueError as error:
        raise at_fault(400, "encoding", str(error), unread=False) from None
    return Body(b"".join(parts), room)


class UnpackedTooLargeError(ValueError):
    """The body holds more than its bound."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """A body of `Content-Encoding` gzip (one member), zstd (some frames) or snappy (a block) unpacked. Raises
    `UnpackedTooLargeError` above `limit` bytes, `ValueError` for a body that is damaged or cut off."""
    return b"".join(unpack_parts(body, encoding, limit))


def unpack_parts(body: bytes, encoding: str, limit: int) -> Iterator[bytes]:
    """The same in parts of a few milliseconds; snappy has no parts, and takes one for each megabyte."""
    try:
        if encoding == "snappy":
            yield _unsnap(body, limit)
        else:
            yield from _gunzip(body, limit) if encoding == "gzip" else _unzstd(body, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"the body is not {encoding}: {error}") from None


def _gunzip(body: bytes, limit: int) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP)
    room, offset, packed = limit, 0, b""
    while not member.eof:
        if not packed:
            packed, offset = body[offset : offset + _GZIP_STEP], offset + _GZIP_STEP
        part = member.decompress(packed, _GZIP_PART)
        packed = member.unconsumed_tail
        if not part and not packed and offset >= len(body) and not member.eof:
            raise ValueError("the body is gzip that was cut off")
        room = _left(room, part)
        yield part
    if member.unused_data or offset < len(body):
        raise ValueError("the body goes on after its gzip member")


def _unzstd(body: bytes, limit: int) -> Iterator[bytes]:
    room, offset = limit, 0
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame, frames = unpacker.decompressobj(), 1
    while offset < len(body):
        if frame.eof:
            frame, frames = unpacker.decompressobj(), frames + 1
            if frames > _MAX_FRAMES:
                raise ValueError(f"the body has more than {_MAX_FRAMES} frames of zstd; send it in one")
        part = frame.decompress(body[offset : offset + _ZSTD_STEP])
        room = _left(room, part)
        yield part
        offset = min(offset + _ZSTD_STEP, len(body)) - len(frame.unused_data)
    if body and not frame.eof:
        raise ValueError("the body is zstd that was cut off")


def _left(room: int, part: bytes) -> int:
    if len(part) > room:
        raise UnpackedTooLargeError
    return room - len(part)


def _unsnap(body: bytes, limit: int) -> bytes:
    """The content of a block of snappy, whose size is known before there is room for it."""
    from cramjam import DecompressionError, snappy  # of the extra `remote-write`

    try:
        if snappy.decompress_raw_len(body) > limit:
            raise UnpackedTooLargeError
        return bytes(snappy.decompress_raw(body))
    except DecompressionError as error:
        raise ValueError(f"the body is not a block of snappy: {error}") from None
