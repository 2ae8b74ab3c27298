"""Where a tailed file was read up to, and which file goes on from there. No I/O.

A position names a place by what stands there, not by an inode alone: an inode is given to another file as
soon as its own is deleted, and a file that is truncated and filled again keeps it.

The positions of all files of one input are one text that fits into the header of a batch. Version 2 is
`{"v":2,"files":"…"}`, base64 of one record a file: 8 bytes of the BLAKE2b of its path, 8 bytes of its
fingerprint, then its inode, its offset and when it was changed, each as a byte with a length and that many
bytes, the most significant first. A record has at most 43 bytes, so `MAX_FILES` of them fit. Version 1 was of
one file, in words; it is read, and no longer written.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec

from agent.contract import ContractError

FINGERPRINT_BYTES: Final = 1024
"""How many bytes at the beginning of a file, and how many before the offset, make its fingerprint."""
_NUMBER: Final = r"[.-]\d[\dT_:.-]*"
_numbered = re.compile(_NUMBER).fullmatch


class FilePosition(NamedTuple):
    """Where a file was read up to: `offset` bytes of it. `modified` is when it had last been changed (ns
    since 1970), by which later files are known. The number of its device is left out: it may
    be another after each start of the machine."""

    inode: int
    offset: int
    fingerprint: str
    modified: int


class Fingerprint(NamedTuple):
    """What tells a place in a file: the first bytes of the file, and those just before the place."""

    head: bytes = b""
    tail: bytes = b""

    def after(self, data: bytes, stop: int | None = None) -> Fingerprint:
        """The mark of the place behind `data`, or behind the first `stop` bytes of it, which stand at this
        one."""
        stop = len(data) if stop is None else stop
        head, tail = self.head, data[max(0, stop - FINGERPRINT_BYTES) : stop]
        if len(head) < FINGERPRINT_BYTES:
            head = (head + data[: min(stop, FINGERPRINT_BYTES)])[:FINGERPRINT_BYTES]
        if len(tail) < FINGERPRINT_BYTES:
            tail = (self.tail + tail)[-FINGERPRINT_BYTES:]
        return Fingerprint(head, tail)

    def digest(self) -> str:
        return blake2b(self.head + self.tail, digest_size=8).hexdigest()


def changed_after(modified: int) -> FilePosition:
    """The position before all files that were changed later than `modified`, ns since 1970."""
    return FilePosition(0, 0, Fingerprint().digest(), modified + 1)


class ListedFile(NamedTuple):
    """A file as a look into its folder showed it; `size` in bytes, `modified` in ns since 1970."""

    name: str
    inode: int
    size: int
    modified: int


def is_rotated(name: str, live: str) -> bool:
    """Whether a file's name is what rotation makes of the name `live`: a number or a time at the end or
    before the extension (`a.log.1`, `a.log-20251121`, `a.1.log`). Nothing else passes, above all no copy that
    a person made and nothing that was compressed."""
    stem, dot, extension = live.rpartition(".")
    if re.fullmatch(re.escape(live) + _NUMBER, name):
        return True
    return (
        bool(stem) and re.fullmatch(re.escape(stem) + _NUMBER + re.escape(dot + extension), name) is not None
    )


@lru_cache(maxsize=4096)
def live_names(name: str) -> frozenset[str]:
    """The names from which rotation makes this one: those for which `is_rotated` says so."""
    return frozenset(_live_names(name))


def _live_names(name: str) -> Iterator[str]:
    dot = name.rfind(".")  # an extension holds none itself
    for index in range(1, len(name)):
        if name[index] in ".-":
            if _numbered(name, index):
                yield name[:index]
            if _numbered(name, index, max(index, dot)):
                yield name[:index] + name[dot:]


def candidates(
    position: FilePosition, live: ListedFile | None, folder: Iterable[ListedFile], live_name: str
) -> list[ListedFile]:
    """The files that may hold `position`, the likeliest first: those with its inode, which were renamed at
    most; what was copied from it before it was truncated; the live file under another inode, as after a
    restore. Whether one does, its fingerprint tells. `folder` is the other files beside the live one."""
    everything = [*([live] if live else []), *folder]
    long_enough = [file for file in everything if file.size >= position.offset]
    same = [file for file in long_enough if file.inode == position.inode]
    copies = [
        file
        for file in long_enough
        if file not in same and file.modified >= position.modified and is_rotated(file.name, live_name)
    ]
    copies.sort(key=lambda file: file.modified, reverse=True)
    restored = [file for file in long_enough if file is live and file not in same]
    return [*same, *copies, *restored]


def successor(
    live: ListedFile | None, folder: Iterable[ListedFile], live_name: str, after: int | None, read: int | None
) -> ListedFile | None:
    """The file to read next, after one that was last changed at `after`: the oldest rotated file that was
    changed later, for several rotations may have passed, otherwise the live one. `read` is the inode of the
    one before, as long as it is held open. An empty file is not gone on to: its writer may still be in the
    one before."""
    rotated = [
        file
        for file in folder
        if after is not None
        and file.modified > after
        and file.size > 0
        and file.inode != read
        and is_rotated(file.name, live_name)
    ]
    if rotated:
        return min(rotated, key=lambda file: file.modified)
    return live if live is not None and live.size > 0 else None


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
