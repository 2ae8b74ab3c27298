"""Handles byte columns by their buffers with numpy, without an object per row. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
Letters = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def slices(content: bytes | pa.Buffer, first: npt.NDArray[Any], end: npt.NDArray[Any]) -> pa.Array:
    """Return the bytes between ascending starts and ends, by an Arrow gather."""
    size = first.size
    offsets = np.zeros(2 * size + 1, dtype=np.int32)
    offsets[:-1:2], offsets[1::2], offsets[-1] = first, end, end[-1] if size else 0
    between = pa.Array.from_buffers(
        pa.binary(), 2 * size, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    return between.take(pa.array(np.arange(0, 2 * size, 2)))


def have(content: bytes, first: Numbers, wanted: bytes) -> Mask:
    """Tell at which places `wanted` stands."""
    size = len(content) - len(wanted) + 1
    if size < 1:
        return np.zeros(first.size, dtype=np.bool_)
    # Of bytes as one value each, for Arrow and numpy compare texts byte by byte.
    words: Any = np.ndarray((size,), f"V{len(wanted)}", content, strides=(1,))
    found = words[np.clip(first, 0, size - 1)]
    if found.tobytes() == wanted * first.size:
        return np.ones(first.size, dtype=np.bool_)
    letters = found.view(np.uint8).reshape(first.size, len(wanted))
    same: Mask = (letters == np.frombuffer(wanted, np.uint8)).all(axis=1)
    return same


def content_of(column: pa.Array) -> tuple[pa.Buffer, npt.NDArray[np.int32]]:
    """Return the bytes of a column without nulls and row offsets, including the end."""
    _, offsets, content = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    first, end = edges[[0, -1]].tolist()
    return (content or pa.py_buffer(b"")).slice(first, end - first), edges - edges[0]


_DOT: Final = ord(".")


def tokens(column: pa.Array, count: int, place: int) -> Numbers | None:
    """Return the numeric token at an inner place of subjects with `count` tokens each; None when
    any differs.
    """
    content, edges = content_of(column)
    dots = np.flatnonzero(np.frombuffer(content, np.uint8) == _DOT)
    if dots.size != len(column) * (count - 1):
        return None
    each = dots.reshape(len(column), -1)
    if (each[:, 0] < edges[:-1]).any() or (each[:, -1] >= edges[1:]).any():
        return None
    try:
        found = slices(content, each[:, place - 1] + 1, each[:, place]).cast(pa.string())
        if not pc.all(pc.ascii_is_decimal(found)).as_py():
            return None
        numbers: Numbers = found.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers
