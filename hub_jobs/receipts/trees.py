"""Hashes the rows of an hour for its Merkle trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract.cbor import encode_cbor

READING_FIELDS: Final = (
    *("device", "metric", "value", "text", "tags", "class", "run", "n", "index", "arrived"),
    *("source_stream", "source_identity", "source_seq", "value_array", "value_bytes"),
)
"""Columns of `readings` that are signed as they are. Before them stands the time that the reading came with:
`ts`, or `ts_original` where a wrong clock was corrected, for a correction may follow the root.
"""


def _text(content: bytes | None) -> pa.Scalar:
    return pa.scalar(content, pa.large_binary())


def batch_leaf(entry: list[Any]) -> bytes:
    """Hash a message: class, run, source identity, number or sequence, digest and count."""
    return sha256(b"\x00" + encode_cbor(entry)).digest()


def reading_leaves(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Hash readings as `reading_rows` returns them."""
    return (sha256(b"\x00" + row).digest() for row in rows)


def reading_rows(found: pa.Table) -> pa.Array:
    """Return each reading's signed fields, each as `<bytes>:<content>,` or `-,` for null."""
    time = pc.coalesce(found["ts_original"], found["ts"])
    fields = [_sized(_flat(column)) for column in (time, *(found[name] for name in READING_FIELDS))]
    return pc.binary_join_element_wise(*fields, _text(b""), _text(b","))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as binary: numbers in decimal, a double as its 64 bits, a list as its parts."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.cast(kind.value_type), kind.value_type
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        return _joined(array)
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif pa.types.is_floating(kind):
        array = array.view(pa.int64())
    if pa.types.is_integer(array.type):
        array = array.cast(pa.string())
    return array.cast(pa.large_binary())


def _joined(array: pa.Array) -> pa.Array:
    """Return each list's parts as netstrings; of a map each key and its value."""
    if pa.types.is_map(array.type):
        pairs = [_sized(_flat(pa.chunked_array([part]))) for part in (array.keys, array.items)]
    else:
        pairs = [_sized(_flat(pa.chunked_array([array.values])))]
    parts = pc.binary_join_element_wise(*pairs, _text(b""), _text(b","))
    offsets = array.offsets.cast(pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, parts)
    return pc.if_else(array.is_null(), _text(None), pc.binary_join(lists, _text(b"")))


def _sized(array: pa.Array) -> pa.Array | pa.Scalar:
    """Return each text behind its number of bytes, `-` for null."""
    if array.null_count == len(array) > 0:
        return _text(b"-")
    sizes = pc.binary_length(array).cast(pa.string()).cast(pa.large_binary())
    return pc.fill_null(pc.binary_join_element_wise(sizes, array, _text(b":")), _text(b"-"))


def fields_of(row: bytes) -> list[bytes | None]:
    """Divide a row of `reading_rows` into its fields again."""
    found, at = list[bytes | None](), 0
    while at < len(row):
        if row[at : at + 2] == b"-,":
            found.append(None)
            at += 2
            continue
        colon = row.index(b":", at)
        end = colon + 1 + int(row[at:colon])
        found.append(row[colon + 1 : end])
        at = end + 1
    return found
