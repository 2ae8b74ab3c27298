"""Identifies generations of followed files, and encodes positions and catalogues. No I/O.

A generation is one file from first to last byte under any names. Inodes are reused and truncated files keep
theirs, so marks of content identify it too: the first kilobyte, and the one before the position. Times
identify nothing.

A batch has `{"v":1,"c":N,"files":"…"}`, base64 of records: files at their paths, and changes since catalogue
N. The catalogue in the state directory has all generations. A record is BLAKE2b of path (6 bytes), first line
(3), first mark (5), both marks (8), status, then inode, offset, id and `of`, each length-prefixed,
big-endian.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from agent.contract import ContractError

FINGERPRINT_BYTES: Final = 1024
"""Bytes of each mark."""
MAX_FILES: Final = 128
"""Files per input at their paths; their records fit a header."""
MAX_KNOWN: Final = 8192
"""Generations per catalogue."""
_NUMBER: Final = r"[.-]\d[\dT_:.-]*"
_numbered = re.compile(_NUMBER).fullmatch
_TAI_LIVE: Final = "current"
_tai_named = re.compile(r"@[0-9a-f]{24}\.[stu]").fullmatch
"""Names of rotated `current` by multilog, svlogd and s6-log: TAI64N label and state."""
_DATE_DIGITS: Final = 6
_KEY: Final = 6
_START: Final = 64
"""Digested bytes of the first line."""
_SHORT: Final = 3
_HEAD: Final = 5
_MARK: Final = 8
_MARKS: Final = _KEY + _SHORT + _HEAD + _MARK + 1
_NUMBERS: Final = 4


class Status(IntEnum):
    """The handling of a generation."""

    OPEN = 0
    """May have unread lines."""
    DONE = 1
    """Read; continues if it grows."""
    PASSED = 2
    """Rotated before the first look: not read."""
    COPY = 3
    """A copy of `of`, not read while that has the content."""


class Fingerprint(NamedTuple):
    """Marks of a place: first bytes, and bytes before it."""

    head: bytes = b""
    tail: bytes = b""

    def after(self, data: bytes, stop: int | None = None) -> Fingerprint:
        """Return the marks after `stop` bytes of `data`, which begins here."""
        stop = len(data) if stop is None else stop
        head, tail = self.head, data[max(0, stop - FINGERPRINT_BYTES) : stop]
        if len(head) < FINGERPRINT_BYTES:
            head = (head + data[: min(stop, FINGERPRINT_BYTES)])[:FINGERPRINT_BYTES]
        if len(tail) < FINGERPRINT_BYTES:
            tail = (self.tail + tail)[-FINGERPRINT_BYTES:]
        return Fingerprint(head, tail)

    def first_line(self) -> bytes:
        return self.head[: self.head.find(b"\n") + 1]

    def last_line(self) -> bytes:
        return self.tail[self.tail.rfind(b"\n", 0, -1) + 1 :]

    def digest(self) -> bytes:
        return blake2b(self.head + self.tail, digest_size=_MARK).digest()


def head_digest(head: bytes) -> bytes:
    """Digest the first line and all first bytes."""
    return _line_digest(head) + blake2b(head, digest_size=_HEAD).digest()


def _line_digest(head: bytes) -> bytes:
    end = head.find(b"\n", 0, _START) + 1 or _START
    return blake2b(head[:end], digest_size=_SHORT).digest()


class Generation(NamedTuple):
    """A generation read up to `offset`. The device number is omitted, as it changes at boot."""

    id: int
    """Grows within an input."""
    home: bytes
    """Digest of its path."""
    inode: int
    offset: int
    head: bytes
    mark: bytes
    status: Status = Status.OPEN
    of: int = 0
    """Origin's id of a `COPY`, else the end of skipped NULs."""

    @property
    def head_bytes(self) -> int:
        """Size of the first mark."""
        return min(self.offset, FINGERPRINT_BYTES)

    def can_tell(self, head: bytes) -> bool:
        """Tell whether these first bytes suffice for comparison."""
        return b"\n" in head[:_START] or len(head) >= min(_START, self.offset)

    def may_begin(self, head: bytes) -> bool:
        """Tell whether a file with these fewer first bytes may be this one."""
        return self.can_tell(head) and _line_digest(head[: self.offset]) == self.head[:_SHORT]

    def dropped(self) -> Generation:
        """Return the record that removes it from a catalogue."""
        return self._replace(inode=0, status=Status.DONE)

    def at(self, offset: int, fingerprint: Fingerprint) -> Generation:
        """Return it with another place."""
        return self._replace(offset=offset, head=head_digest(fingerprint.head), mark=fingerprint.digest())

    def holds(self, fingerprint: Fingerprint) -> bool:
        """Tell whether a file with these marks at `offset` is this one."""
        return fingerprint.digest() == self.mark


def begin(number: int, home: str, inode: int) -> Generation:
    """Return an unread generation."""
    return Generation(number, key_of(home), inode, 0, b"", b"").at(0, Fingerprint())


def is_rotated(name: str, live: str) -> bool:
    """Tell whether rotation makes this name from `live`: a number or time at the end or before the extension.

    Examples: `a.log.1`, `a.log-20251121`, `a.1.log`. Copies by people and compressed files do not match.
    """
    if live == _TAI_LIVE and _tai_named(name):
        return True
    stem, dot, extension = live.rpartition(".")
    if re.fullmatch(re.escape(live) + _NUMBER, name):
        return True
    return (
        bool(stem) and re.fullmatch(re.escape(stem) + _NUMBER + re.escape(dot + extension), name) is not None
    )


@lru_cache(maxsize=4096)
def live_names(name: str) -> frozenset[str]:
    """Return the names whose rotation gives this one."""
    return frozenset(_live_names(name))


def _live_names(name: str) -> Iterator[str]:
    if _tai_named(name):
        yield _TAI_LIVE
    dot = name.rfind(".")  # an extension holds none itself
    for index in range(1, len(name)):
        if name[index] in ".-":
            if _numbered(name, index):
                yield name[:index]
            if _numbered(name, index, max(index, dot)):
                yield name[:index] + name[dot:]


def is_sibling(name: str, target: str) -> bool:
    """Tell whether names differ only in numbers, as dated targets of a link."""
    return name != target and skeleton(name) == skeleton(target) != target


@lru_cache(maxsize=4096)
def skeleton(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def age_order(name: str) -> tuple[object, ...]:
    """Sort rotated names, oldest first: counters grow with age, dates do not. Affects order only."""
    label = os.path.basename(name)  # noqa: PTH119 - paths are texts here
    if _tai_named(label):
        return (int(label[1:25], 16),)
    return tuple(
        int(number) if len(number) >= _DATE_DIGITS else -int(number) for number in re.findall(r"\d+", name)
    )


def key_of(path: str) -> bytes:
    """Return a path's digest."""
    return blake2b(os.fsencode(path), digest_size=_KEY).digest()


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch's header, completing catalogue `c` or later."""

    v: Literal[1]
    c: _Natural
    files: str
    begun: str = ""

    def generations(self) -> dict[int, Generation]:
        return _parse(self.files)

    def starts(self) -> dict[int, Generation]:
        return _parse(self.begun)


class Kept(msgspec.Struct, frozen=True):
    """A catalogue: number, next id, looked paths (`key_of`, base64), generations."""

    v: Literal[1]
    c: _Natural
    next: _Natural
    looked: list[str]
    files: str

    def keys(self) -> set[bytes]:
        return {base64.b64decode(key, validate=True) for key in self.looked}

    def generations(self) -> dict[int, Generation]:
        return _parse(self.files)


def encode(number: int, known: Iterable[Generation], begun: Iterable[Generation] = ()) -> str:
    """Return the header, printable ASCII."""
    return msgspec.json.encode(Position(1, number, _packed(known), _packed(begun))).decode()


def encode_kept(number: int, following: int, looked: Iterable[bytes], known: Iterable[Generation]) -> str:
    names = sorted(base64.b64encode(key).decode() for key in looked)
    return msgspec.json.encode(Kept(1, number, following, names, _packed(known))).decode()


def parse_position(text: str) -> Position:
    """Parse a header; raises `ContractError`."""
    return _read(text, Position)


def parse_kept(text: str) -> Kept:
    """Parse a catalogue; raises `ContractError`."""
    return _read(text, Kept)


_Record = TypeVar("_Record", Position, Kept)


def _read(text: str, kind: type[_Record]) -> _Record:
    try:
        found = msgspec.json.decode(text, type=kind)
        found.generations()
        found.keys() if isinstance(found, Kept) else found.starts()
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ContractError(f"the stored position {text!r:.300} can't be read here: {error}") from None
    return found


def merged(header: Position | None, kept: Kept | None) -> dict[int, Generation]:
    """Merge both texts. Offsets only grow; otherwise the newer wins."""
    known = {} if kept is None else kept.generations()
    if header is None:
        return known
    is_newer = kept is None or header.c >= kept.c
    for number, generation in header.generations().items():
        other = known.get(number)
        if other is not None and generation.offset != other.offset:
            known[number] = max(generation, other, key=lambda one: one.offset)
        elif is_newer:
            known[number] = generation
    return {number: one for number, one in known.items() if one.inode}


def _packed(known: Iterable[Generation]) -> str:
    return base64.b64encode(b"".join(map(_pack, known))).decode()


@lru_cache(maxsize=MAX_FILES)
def _pack(one: Generation) -> bytes:
    numbers = map(_number, (one.inode, one.offset, one.id, one.of))
    return b"".join((one.home, one.head, one.mark, bytes((one.status,)), *numbers))


def _number(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes((size,)) + number.to_bytes(size, "big")


def _parse(files: str) -> dict[int, Generation]:
    return {one.id: one for one in _records(base64.b64decode(files, validate=True))}


def _records(data: bytes) -> Iterator[Generation]:
    cursor = 0
    while cursor < len(data):
        marks = data[cursor : cursor + _MARKS]
        cursor += len(marks)
        if len(marks) < _MARKS:
            raise ValueError("a record of it is cut off")
        numbers = []
        for _ in range(_NUMBERS):
            size = data[cursor] if cursor < len(data) else _MARK + 1
            if size > _MARK or cursor + 1 + size > len(data):
                raise ValueError("a record of it is cut off or longer than it can be")
            numbers.append(int.from_bytes(data[cursor + 1 : cursor + 1 + size], "big"))
            cursor += 1 + size
        inode, offset, number, of = numbers
        home, head, mark = marks[:_KEY], marks[_KEY : -_MARK - 1], marks[-_MARK - 1 : -1]
        yield Generation(number, home, inode, offset, head, mark, Status(marks[-1]), of)
