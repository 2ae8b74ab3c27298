"""Secrets looked for in whatever a program leaves behind: as they are, and as they may be written down on the
way, since a search for the plain text alone misses what stands in a header, an address or a record."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq


def forms(secret: str) -> set[bytes]:
    """A secret as it is, quoted for an address, escaped in JSON, in hexadecimal, and in Base64 wherever it
    stands in what was encoded."""
    plain = secret.encode()
    quoted = {quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    return {plain, plain.hex().encode()} | {one.encode() for one in quoted} | _encoded(plain)


def _encoded(plain: bytes) -> set[bytes]:
    """Base64 in both alphabets at each of its three offsets, without the characters at the ends that tell of
    the neighbours too."""
    found = set()
    for offset in range(3):
        whole = base64.b64encode(bytes(offset) + plain)
        own = whole[-(-8 * offset // 6) : 8 * (offset + len(plain)) // 6]
        found |= {own, own.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def leaked(said: Mapping[str, bytes], secrets: Mapping[str, str]) -> list[tuple[str, str]]:
    """Where which secret stands."""
    sought = [(name, form) for name, secret in secrets.items() for form in forms(secret)]
    return sorted({(where, name) for where, text in said.items() for name, form in sought if form in text})


def files_below(directory: Path) -> dict[str, bytes]:
    """What all files below a directory hold; of a Parquet file also its rows and metadata, which are
    compressed."""
    return {str(path): content_of(path) for path in sorted(directory.rglob("*")) if path.is_file()}


def content_of(path: Path) -> bytes:
    """What one file holds."""
    data = path.read_bytes()
    if path.suffix != ".parquet":
        return data
    with pq.ParquetFile(path) as file:
        return b"\n".join([data, *_texts((file.metadata, file.schema_arrow, file.read().to_pylist()))])


def _texts(values: Iterable[object]) -> list[bytes]:
    return [str(one).encode() for one in values]
