"""What a pull input hands in at a time, its pieces, and how each line of one is stored once when the piece
goes into several messages: readings of several classes, and dead letters.

The messages of a piece, its parts, are stored one after the other. Each says in `Petiole-Position` where the
input is: `<piece> - <position>` once all of a piece is settled, and before that
`<piece> <lines> <size> <before><position>`: which lines are stored (base64 of a bitmap, the first line is
the lowest bit), the positions before and behind the piece, and the length of the first (`-`: there is none).
So the newest of all parts, in whatever stream, tells everything, and a lost one is that of an older piece.

The input is told to go on before a piece of which parts are stored, and that it must end where it ended; the
lines that are stored are then left out, whatever the rules say of them by now.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.contract import ContractError
from agent.leaf.intake import ResumePoint

MAX_LINES: Final = 8192
"""Lines of a piece: what a header can tell of one by one."""

_SETTLED = re.compile(r"([1-9][0-9]{0,17}) - ([ -~]*)\Z")
_BEGUN = re.compile(r"([1-9][0-9]{0,17}) ([A-Za-z0-9_-]+) (-|[0-9]{1,5}) ([ -~]*)\Z")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an input is: `position` is its own, behind the piece of this number. `lines` are those that
    are stored of a piece that is not settled yet (None: it is), `before` is the position before it."""

    piece: int
    position: str
    lines: int | None = None
    before: str | None = None

    def encode(self) -> str:
        """As it stands in the header."""
        if self.lines is None:
            return f"{self.piece} - {self.position}"
        size = "-" if self.before is None else len(self.before)
        return f"{self.piece} {_bitmap(self.lines)} {size} {self.before or ''}{self.position}"

    def place(self) -> ResumePoint:
        """Where the input goes on."""
        if self.lines is None:
            return ResumePoint(self.position)
        return ResumePoint(self.before, self.position)


def parse_progress(text: str) -> Progress:
    """Read a header back; raises `ContractError`."""
    if (settled := _SETTLED.match(text)) is not None:
        return Progress(int(settled[1]), settled[2])
    begun = _BEGUN.match(text)
    size = 0 if begun is None or begun[3] == "-" else int(begun[3])
    if begun is None or size > len(begun[4]) or len(begun[2]) % 4 == 1:
        raise ContractError(f"the stored position {text!r:.300} can't be read here")
    lines = base64.urlsafe_b64decode(begun[2] + "=" * (-len(begun[2]) % 4))
    before = None if begun[3] == "-" else begun[4][:size]
    return Progress(int(begun[1]), begun[4][size:], int.from_bytes(lines, "little"), before)


def newest(found: Iterable[Progress]) -> Progress | None:
    """The one that tells how far the input is."""
    return max(found, key=_age, default=None)


def _age(one: Progress) -> tuple[int, bool, int]:
    return one.piece, one.lines is None, 0 if one.lines is None else one.lines.bit_count()


def _bitmap(lines: int) -> str:
    data = lines.to_bytes((lines.bit_length() + 7) // 8 or 1, "little")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some readings of a piece, for one class: NDJSON of `count` lines, and which of the piece's lines they
    are; `on_settled` is called as that of a chunk, unless the part is stored in several."""

    cls: str
    payload: bytes
    count: int
    numbers: Sequence[int]
    on_settled: Callable[[int | None], None] | None = None

    def halves(self) -> Iterator[Fragment]:
        """The same as two parts; there must be two lines at least."""
        rows, middle = self.payload.splitlines(keepends=True), self.count // 2
        for where in (slice(None, middle), slice(middle, None)):
            yield Fragment(self.cls, b"".join(rows[where]), len(rows[where]), self.numbers[where])


def whole(cls: str, payload: bytes, count: int, left_out: int = 0) -> Fragment:
    """All readings of a piece for one class, but for the lines of the bitmap `left_out`."""
    if not left_out:
        return Fragment(cls, payload, count, range(count))
    numbers = [number for number in range(count) if not left_out >> number & 1]
    rows = payload.split(b"\n")
    return Fragment(cls, b"".join(rows[number] + b"\n" for number in numbers), len(numbers), numbers)


def bits(numbers: Sequence[int]) -> int:
    """A bitmap of these numbers, all of them below `MAX_LINES`."""
    if isinstance(numbers, range) and numbers.step == 1:
        return ((1 << len(numbers)) - 1) << numbers.start
    found = bytearray(MAX_LINES // 8)
    for number in numbers:
        found[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(found, "little")
