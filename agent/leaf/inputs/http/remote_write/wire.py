"""Reads remote write bodies: a snappy block of protobuf fields. No I/O. Needs the extra `remote-write`
(`cramjam`).

Skipped fields create no objects (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_LONGEST: Final = 10
"""Bytes of a number."""
_WRAPS: Final = 1 << 64


class ProtobufError(ValueError):
    """Invalid protobuf bytes."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and its end. Raises `ProtobufError`."""
    value = shift = 0
    for byte in data[at : at + _LONGEST]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _WRAPS, at
        shift += 7
    raise ProtobufError("a number that has no end")


def signed(value: int) -> int:
    """Convert a number to `int64`."""
    return value - _WRAPS if value >> 63 else value


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of `data[at:end]`: tag, start and end of content, or number and end. Raises
    `ProtobufError`.
    """
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = (data[at], at + 1) if at < end and data[at] < 0x80 else varint(data, at)
            start, at = at, at + size
        elif kind == _VARINT:
            start, at = varint(data, at)
        else:
            width = _WIDTHS.get(kind)
            if width is None:
                raise ProtobufError(f"a field of the wire type {kind}")
            start, at = at, at + width
        if at > end or tag < 8:
            raise ProtobufError(
                "a field that goes beyond its message" if at > end else "a field without a number"
            )
        yield tag, start, at
