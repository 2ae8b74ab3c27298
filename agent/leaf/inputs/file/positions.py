"""The generations of followed files: how a generation is recognised, and the texts that keep what is known.
No I/O.

A *generation* is one file from its first byte to its last, whatever its names are meanwhile. Rotation ends
one and begins the next. An inode alone does not identify a generation: the file system gives it to another
file as soon as its own is deleted, and a file that is truncated and filled again keeps it. So a generation is
known by its inode and by two marks of its content: the first kilobyte, and the kilobyte before the position.
Times of change identify and order nothing: a clock is set back, and `touch` or a copy changes them.

A batch carries the position behind its lines in a header: `{"v":1,"c":N,"files":"…"}`, base64 of one record a
file. The header holds the files at their paths, and what changed since catalogue number N was kept; where no
other text tells of the time before the batch, `begun` does. The *catalogue* holds all generations and stands
in the agent's state directory. Both use the same record: BLAKE2b of the path (6 bytes), of the first line
(3), of the first mark (5) and of both marks (8), the status, then inode, offset, id and `of`, each as a byte
with a length and that many bytes, most significant first.
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
"""How many bytes at the beginning of a file, and how many before the offset, make its marks."""
MAX_FILES: Final = 128
"""Files that one input has at their paths at a time: the records of so many fit into a header."""
MAX_KNOWN: Final = 8192
"""Generations that a catalogue holds."""
_NUMBER: Final = r"[.-]\d[\dT_:.-]*"
_numbered = re.compile(_NUMBER).fullmatch
_TAI_LIVE: Final = "current"
_tai_named = re.compile(r"@[0-9a-f]{24}\.[stu]").fullmatch
"""Names that multilog, svlogd and s6-log give a rotated `current`: a TAI64N label and its state."""
_DATE_DIGITS: Final = 6
_KEY: Final = 6
_START: Final = 64
"""Bytes of the first line that its digest is of."""
_SHORT: Final = 3
_HEAD: Final = 5
_MARK: Final = 8
_MARKS: Final = _KEY + _SHORT + _HEAD + _MARK + 1
_NUMBERS: Final = 4


class Status(IntEnum):
    """What is done with a generation."""

    OPEN = 0
    """Lines of it may still be unread."""
    DONE = 1
    """Read to its end. It is read on if it grows."""
    PASSED = 2
    """Rotated before the input looked at its path for the first time: not read."""
    COPY = 3
    """A copy of generation `of`, which still holds its content: not read as long as that is so."""


class Fingerprint(NamedTuple):
    """The marks of a place in a file: the first bytes of the file, and the bytes before the place."""

    head: bytes = b""
    tail: bytes = b""

    def after(self, data: bytes, stop: int | None = None) -> Fingerprint:
        """Return the marks of the place behind the first `stop` bytes of `data`, which begins at this
        place."""
        stop = len(data) if stop is None else stop
        head, tail = self.head, data[max(0, stop - FINGERPRINT_BYTES) : stop]
        if len(head) < FINGERPRINT_BYTES:
            head = (head + data[: min(stop, FINGERPRINT_BYTES)])[:FINGERPRINT_BYTES]
        if len(tail) < FINGERPRINT_BYTES:
            tail = (self.tail + tail)[-FINGERPRINT_BYTES:]
        return Fingerprint(head, tail)

    def digest(self) -> bytes:
        return blake2b(self.head + self.tail, digest_size=_MARK).digest()


def head_digest(head: bytes) -> bytes:
    """Digest the first bytes of a file: their first line, and all of them."""
    return _line_digest(head) + blake2b(head, digest_size=_HEAD).digest()


def _line_digest(head: bytes) -> bytes:
    end = head.find(b"\n", 0, _START) + 1 or _START
    return blake2b(head[:end], digest_size=_SHORT).digest()


class Generation(NamedTuple):
    """What is known of one generation, up to `offset` bytes of it. Its device is left out: that number may be
    another after each start of the machine."""

    id: int
    """Distinguishes the generations of one input; a later one is greater."""
    home: bytes
    """Stands for the path to which it belongs."""
    inode: int
    offset: int
    head: bytes
    mark: bytes
    status: Status = Status.OPEN
    of: int = 0
    """Of a `COPY` the id of its origin; else the offset behind the NULs that were skipped last."""

    @property
    def head_bytes(self) -> int:
        """How many bytes the first mark is of."""
        return min(self.offset, FINGERPRINT_BYTES)

    def can_tell(self, head: bytes) -> bool:
        """Whether the first bytes of a file are enough to tell it from this one."""
        return b"\n" in head[:_START] or len(head) >= min(_START, self.offset)

    def may_begin(self, head: bytes) -> bool:
        """Whether a file with these first bytes, fewer than those of the mark, may be this one."""
        return self.can_tell(head) and _line_digest(head[: self.offset]) == self.head[:_SHORT]

    def dropped(self) -> Generation:
        """Return the record that takes this one out of an older catalogue."""
        return self._replace(inode=0, status=Status.DONE)

    def at(self, offset: int, fingerprint: Fingerprint) -> Generation:
        """Return the same generation, read up to another place."""
        return self._replace(offset=offset, head=head_digest(fingerprint.head), mark=fingerprint.digest())

    def holds(self, fingerprint: Fingerprint) -> bool:
        """Whether a file with these marks at `offset` is this one."""
        return fingerprint.digest() == self.mark


def begin(number: int, home: str, inode: int) -> Generation:
    """Return a generation of which nothing is read."""
    return Generation(number, key_of(home), inode, 0, b"", b"").at(0, Fingerprint())


def is_rotated(name: str, live: str) -> bool:
    """Whether a file's name is made from the name `live` by rotation: with a number or a time at the end or
    before the extension (`a.log.1`, `a.log-20251121`, `a.1.log`). Nothing else passes, above all no copy that
    a person made and nothing that was compressed."""
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
    """Return the names from which rotation makes this one: those for which `is_rotated` holds."""
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
    """Whether two names differ in their numbers alone, as those of dated files do to which a link points in
    turn."""
    return name != target and skeleton(name) == skeleton(target) != target


@lru_cache(maxsize=4096)
def skeleton(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def age_order(name: str) -> tuple[object, ...]:
    """Sort key of rotated names, the oldest first: a counter grows with age, a date does not. The order in
    which generations are read hangs on it, whether they are read does not."""
    label = os.path.basename(name)  # noqa: PTH119 - paths are texts here
    if _tai_named(label):
        return (int(label[1:25], 16),)
    return tuple(
        int(number) if len(number) >= _DATE_DIGITS else -int(number) for number in re.findall(r"\d+", name)
    )


def key_of(path: str) -> bytes:
    """Return what stands for a path in a record."""
    return blake2b(os.fsencode(path), digest_size=_KEY).digest()


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a batch: its records complete those of catalogue number `c` or a later one. `begun` has
    generations as they were before the batch, where no other text tells."""

    v: Literal[1]
    c: _Natural
    files: str
    begun: str = ""

    def generations(self) -> dict[int, Generation]:
        return _parse(self.files)

    def starts(self) -> dict[int, Generation]:
        return _parse(self.begun)


class Kept(msgspec.Struct, frozen=True):
    """A catalogue: its number, the next id, the paths of the configuration that were looked at (`key_of`, in
    base64), and all generations."""

    v: Literal[1]
    c: _Natural
    next: _Natural
    looked: list[str]
    files: str

    def keys(self) -> set[bytes]:
        """Return the keys of `looked`."""
        return {base64.b64decode(key, validate=True) for key in self.looked}

    def generations(self) -> dict[int, Generation]:
        return _parse(self.files)


def encode(number: int, known: Iterable[Generation], begun: Iterable[Generation] = ()) -> str:
    """Return the header, printable ASCII."""
    return msgspec.json.encode(Position(1, number, _packed(known), _packed(begun))).decode()


def encode_kept(number: int, following: int, looked: Iterable[bytes], known: Iterable[Generation]) -> str:
    """Return the text of a catalogue."""
    names = sorted(base64.b64encode(key).decode() for key in looked)
    return msgspec.json.encode(Kept(1, number, following, names, _packed(known))).decode()


def parse_position(text: str) -> Position:
    """Read a header back; raises `ContractError`."""
    return _read(text, Position)


def parse_kept(text: str) -> Kept:
    """Read a catalogue back; raises `ContractError`."""
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
    """Return what both texts say together. Offsets of one generation only grow; of the rest the newer text
    knows more, and which generations there are."""
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
    """Raises `ValueError`."""
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
