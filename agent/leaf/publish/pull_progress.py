"""Encodes a pull input's progress for `Petiole-Position`, as described in `pull_chunks`. Pure.

The bitmap ends with the piece's shape after all lines. A changed parser numbers lines differently, which
makes another piece.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from agent.contract import ContractError
from agent.leaf.intake import Chunk, ResumePoint

MAX_LINES: Final = 8192
"""Lines per piece, bounded by the header."""

_SETTLED = re.compile(r"([1-9][0-9]{0,17}) - ([ -~]*)\Z")

_BEGUN = re.compile(r"([1-9][0-9]{0,17}) ([A-Za-z0-9_-]+) (-|[0-9]{1,5}) ([ -~]*)\Z")

_NUMBER_BITS: Final = 14
_BAD_BITS: Final = 32
_SIGN: Final = 0b1101
_SHAPE_BITS: Final = _SIGN.bit_length() + _BAD_BITS + 2 * _NUMBER_BITS


class Shape(NamedTuple):
    """A piece's numbers of lines and readings, and its invalid lines."""

    lines: int
    readings: int
    bad: int
    """CRC-32 of the invalid lines; None if unknown."""

    @classmethod
    def of(cls, chunk: Chunk) -> Shape:
        bad = zlib.crc32(b"\n".join(letter.received for letter in chunk.letters))
        return cls(chunk.count + len(chunk.letters), chunk.count, bad)

    def mark(self, bitmap: int) -> int:
        """Append the shape to a bitmap."""
        sign = _SIGN << _BAD_BITS | self.bad
        return ((sign << _NUMBER_BITS | self.lines) << _NUMBER_BITS | self.readings) << self.lines | bitmap


def unmarked(bitmap: int) -> tuple[int, Shape] | None:
    """Split a bitmap from its shape."""
    lines = max(0, bitmap.bit_length() - _SHAPE_BITS)
    mark = bitmap >> lines
    shape = Shape(lines, mark & (1 << _NUMBER_BITS) - 1, mark >> 2 * _NUMBER_BITS & (1 << _BAD_BITS) - 1)
    return (bitmap & (1 << lines) - 1, shape) if shape.mark(0) >> lines == mark else None


class Progress(Struct, frozen=True):
    """An input's `position` after this piece. For an unsettled piece `lines` are stored, `before` is the
    position before.
    """

    piece: int
    position: str
    lines: int | None = None
    before: str | None = None
    shape: Shape | None = None

    def encode(self) -> str:
        if self.lines is None:
            return f"{self.piece} - {self.position}"
        size = "-" if self.before is None else len(self.before)
        assert self.shape is not None
        return (
            f"{self.piece} {_bitmap(self.shape.mark(self.lines))} {size} {self.before or ''}{self.position}"
        )

    def is_of(self, chunk: Chunk) -> bool:
        """Tell whether this is the progress of a piece with equal line numbers."""
        is_alike = self.lines is None or self.shape == Shape.of(chunk)
        return self.position == chunk.position and is_alike

    def place(self) -> ResumePoint:
        if self.lines is None:
            return ResumePoint(self.position)
        return ResumePoint(self.before, self.position)


def parse_progress(text: str) -> Progress:
    """Parse a header; raises `ContractError`."""
    if (settled := _SETTLED.match(text)) is not None:
        return Progress(int(settled[1]), settled[2])
    begun = _BEGUN.match(text)
    size = 0 if begun is None or begun[3] == "-" else int(begun[3])
    marked = None
    if begun is not None and size <= len(begun[4]) and len(begun[2]) % 4 != 1:
        data = base64.urlsafe_b64decode(begun[2] + "=" * (-len(begun[2]) % 4))
        marked = unmarked(int.from_bytes(data, "little"))
    if begun is None or marked is None:
        raise ContractError(f"the stored position {text!r:.300} can't be read here")
    before = None if begun[3] == "-" else begun[4][:size]
    return Progress(int(begun[1]), begun[4][size:], marked[0], before, marked[1])


def newest(candidates: Iterable[Progress]) -> Progress | None:
    """Return the newest progress."""
    return max(candidates, key=_age, default=None)


def _age(progress: Progress) -> tuple[int, bool, int]:
    return progress.piece, progress.lines is None, 0 if progress.lines is None else progress.lines.bit_count()


def _bitmap(lines: int) -> str:
    data = lines.to_bytes((lines.bit_length() + 7) // 8 or 1, "little")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def bits(numbers: Sequence[int]) -> int:
    """Return a bitmap of numbers below `MAX_LINES`."""
    if isinstance(numbers, range) and numbers.step == 1:
        return ((1 << len(numbers)) - 1) << numbers.start
    bitmap = bytearray(MAX_LINES // 8)
    for number in numbers:
        bitmap[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bitmap, "little")
