"""Unpacking of compressed request bodies, with a bound on what comes out: a body of a few kilobytes may hold
gigabytes. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import zstandard

_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_STEP: Final = 64 * 1024
"""Bytes fed to gzip at a time."""
_GZIP_PART: Final = 2**20
"""Bytes that are unpacked from them at a time."""
_ZSTD_STEP: Final = 256
"""Bytes fed to zstd at a time. A block of four bytes may hold 128 KiB, so a step yields at most 8 MiB."""
_ZSTD_WINDOW: Final = 8 * 2**20
"""What every decoder must support (RFC 8878, 3.1.1.1.2); a larger one is memory at the sender's choice."""
MAX_RATIO: Final = 200
"""What a body may unpack to, and what its readings may be, in bytes for each that came: readings that are
alike pack to a hundredth at zstd level 3, and to a hundred-and-fiftieth at level 19."""
LEAST: Final = 2**20
"""Bytes that any body may unpack to."""
_MAX_FRAMES: Final = 4096
"""An empty frame of zstd is nine bytes, and costs as much as one of a kilobyte."""


def allowance(came: int, limit: int) -> int:
    """How many bytes may be made of so many that came, at most `limit`."""
    return min(limit, max(LEAST, MAX_RATIO * came))


class UnpackedTooLargeError(ValueError):
    """The body holds more than its bound."""


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """A body of `Content-Encoding` gzip (one member) or zstd (one frame or several) unpacked. Raises
    `UnpackedTooLargeError` above `limit` bytes, `ValueError` for a body that is damaged or cut off."""
    return b"".join(unpack_parts(body, encoding, limit))


def unpack_parts(body: bytes, encoding: str, limit: int) -> Iterator[bytes]:
    """The same in parts of a few milliseconds."""
    try:
        yield from _gunzip(body, limit) if encoding == "gzip" else _unzstd(body, limit)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"the body is not {encoding}: {error}") from None


def _gunzip(body: bytes, limit: int) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP)
    room, place, packed = limit, 0, b""
    while not member.eof:
        if not packed:
            packed, place = body[place : place + _GZIP_STEP], place + _GZIP_STEP
        part = member.decompress(packed, _GZIP_PART)
        packed = member.unconsumed_tail
        if not part and not packed and place >= len(body) and not member.eof:
            raise ValueError("the body is gzip that was cut off")
        room = _left(room, part)
        yield part
    if member.unused_data or place < len(body):
        raise ValueError("the body goes on after its gzip member")


def _unzstd(body: bytes, limit: int) -> Iterator[bytes]:
    room, place = limit, 0
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame, frames = unpacker.decompressobj(), 1
    while place < len(body):
        if frame.eof:
            frame, frames = unpacker.decompressobj(), frames + 1
            if frames > _MAX_FRAMES:
                raise ValueError(f"the body has more than {_MAX_FRAMES} frames of zstd; send it in one")
        part = frame.decompress(body[place : place + _ZSTD_STEP])
        room = _left(room, part)
        yield part
        place = min(place + _ZSTD_STEP, len(body)) - len(frame.unused_data)
    if body and not frame.eof:
        raise ValueError("the body is zstd that was cut off")


def _left(room: int, part: bytes) -> int:
    if len(part) > room:
        raise UnpackedTooLargeError
    return room - len(part)
