"""Bounds for what asyncua 2.1 decodes: a message of a few bytes must not become a value of gigabytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from asyncua.common.utils import Buffer, NotEnoughData
from asyncua.ua import ua_binary

_read = Buffer.read
_reshape = ua_binary._reshape


class _NullArray:
    """Arrays of the type Null. Its values take no byte, so that nothing but its length, of up to 2^31, bounds
    the list that asyncua makes of such an array."""

    @staticmethod
    def pack_array(values: Sequence[None] | None) -> bytes:
        """As asyncua writes it: a length that nothing follows."""
        length: bytes = ua_binary.Primitives.Int32.pack(-1 if values is None else len(values))
        return length

    @staticmethod
    def unpack_array(_data: Any, _length: int) -> tuple[None, ...]:
        """No values, whatever the length: there is nothing in them to be read."""
        return ()


def _read_forwards(buffer: Buffer, size: int) -> bytes:
    """What comes next. Raises `NotEnoughData` also for a negative size, such as a text may say that it has:
    asyncua goes back by that, so that an array reads the same bytes over and over."""
    if size < 0:
        raise NotEnoughData(f"a length of {size} bytes")
    return _read(buffer, size)


def _reshaped(flat: list[Any], dims: list[int]) -> list[Any]:
    """The values of an array by its dimensions; flat where these are none, or declare more values than there
    are. asyncua fills up to a million with empty lists."""
    if not dims or min(dims) < 0:
        return flat
    declared = math.prod(max(size, 1) for size in dims)
    return flat if declared > len(flat) else _reshape(flat, dims)


def bound() -> None:
    """Have asyncua keep the bounds, in all that this process decodes from now on."""
    ua_binary.Primitives1.Null = _NullArray  # type: ignore[attr-defined]
    ua_binary._create_uatype_array_deserializer.cache_clear()
    ua_binary._reshape = _reshaped
    Buffer.read = _read_forwards  # type: ignore[assignment, method-assign]
