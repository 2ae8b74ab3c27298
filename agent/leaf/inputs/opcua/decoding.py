"""Bounds asyncua 2.1's decoding, so that small messages can't become gigabytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from asyncua.common.utils import Buffer, NotEnoughData
from asyncua.ua import ua_binary

_read = Buffer.read
_reshape = ua_binary._reshape


class _NullArray:
    """Arrays of type Null, whose values have no bytes, so only a length of up to 2^31 bounds the list."""

    @staticmethod
    def pack_array(values: Sequence[None] | None) -> bytes:
        """Write a length without content, as asyncua does."""
        length: bytes = ua_binary.Primitives.Int32.pack(-1 if values is None else len(values))
        return length

    @staticmethod
    def unpack_array(_data: Any, _length: int) -> tuple[None, ...]:
        """Return no values whatever the length."""
        return ()


def _read_forwards(buffer: Buffer, size: int) -> bytes:
    """Read on. Raises `NotEnoughData` for negative sizes, for which asyncua would go back and reread."""
    if size < 0:
        raise NotEnoughData(f"a length of {size} bytes")
    return _read(buffer, size)


def _reshaped(flat: list[Any], dims: list[int]) -> list[Any]:
    """Shape an array by its dimensions; flat if these exceed the values, which asyncua would fill up to a
    million.
    """
    if not dims or min(dims) < 0:
        return flat
    declared = math.prod(max(size, 1) for size in dims)
    return flat if declared > len(flat) else _reshape(flat, dims)


def bound() -> None:
    """Install the limits in asyncua for this process."""
    ua_binary.Primitives1.Null = _NullArray  # type: ignore[attr-defined]
    ua_binary._create_uatype_array_deserializer.cache_clear()
    ua_binary._reshape = _reshaped
    Buffer.read = _read_forwards  # type: ignore[assignment, method-assign]
