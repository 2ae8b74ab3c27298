"""Where all files of one input were read up to, as one text that fits into the header of a batch. No I/O.

Version 2 is `{"v":2,"files":"…"}`, base64 of one record a file: 8 bytes of the BLAKE2b of its path, 8 bytes
of its fingerprint, then its inode, its offset and when it was changed, each as a byte with a length and that
many bytes, the most significant first. A record has at most 43 bytes, so `MAX_FILES` of them fit. Version 1
was of one file, in words; it is read, and no longer written.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from agent.contract import ContractError
from agent.leaf.inputs.file.rotation import FilePosition

MAX_FILES: Final = 128
_HASH: Final = 8

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


class _One(msgspec.Struct, tag_field="v", tag=1):
    path: str
    inode: _Natural
    offset: _Natural
    fingerprint: _Fingerprint
    modified: int


class _Many(msgspec.Struct, tag_field="v", tag=2):
    files: str


def key_of(path: str) -> bytes:
    """What stands for a path in a position."""
    return blake2b(os.fsencode(path), digest_size=_HASH).digest()


def pack(key: bytes, position: FilePosition) -> bytes:
    """The record of one file."""
    numbers = (position.inode, position.offset, max(0, position.modified))
    return b"".join((key, bytes.fromhex(position.fingerprint), *map(_packed, numbers)))


def encode(records: Iterable[bytes]) -> str:
    """The text of all records, printable ASCII."""
    return json.dumps({"v": 2, "files": base64.b64encode(b"".join(records)).decode()}, separators=(",", ":"))


def parse_positions(text: str) -> dict[bytes, FilePosition]:
    """Read positions back, by the key of their path; raises `ContractError`."""
    try:
        stored = msgspec.convert(json.loads(text), _One | _Many)
        if isinstance(stored, _One):
            position = FilePosition(stored.inode, stored.offset, stored.fingerprint, stored.modified)
            return {key_of(stored.path): position}
        return dict(_records(base64.b64decode(stored.files, validate=True)))
    except (ValueError, RecursionError, msgspec.ValidationError, binascii.Error) as error:
        raise ContractError(f"the stored position {text!r:.300} can't be read here: {error}") from None


def _packed(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes((size,)) + number.to_bytes(size, "big")


def _records(data: bytes) -> Iterator[tuple[bytes, FilePosition]]:
    cursor = 0
    while cursor < len(data):
        key, fingerprint = data[cursor : cursor + _HASH], data[cursor + _HASH : cursor + 2 * _HASH]
        cursor += 2 * _HASH
        numbers = []
        for _ in range(3):
            size = data[cursor] if cursor < len(data) else _HASH + 1
            if size > _HASH or cursor + 1 + size > len(data):
                raise ValueError("a record of it is cut off or longer than it can be")
            numbers.append(int.from_bytes(data[cursor + 1 : cursor + 1 + size], "big"))
            cursor += 1 + size
        inode, offset, modified = numbers
        yield key, FilePosition(inode, offset, fingerprint.hex(), modified)
