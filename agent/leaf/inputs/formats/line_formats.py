"""The forms of lines that an input may be told to take: NDJSON, or Influx line protocol. Good lines are
parted from bad ones, for senders to whom nobody can send a whole piece back. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, Protocol

from agent.base.wait import Pacer

if TYPE_CHECKING:
    from agent.leaf.inputs.formats.line_cache import LineCache

from dataclasses import dataclass

from agent.leaf.inputs.formats.ndjson import split_slices

Format = Literal["ndjson", "influx"]
Precision = Literal["ns", "us", "ms", "s", "m", "h"]
_PIECE: Final = 8 * 1024
"""Bytes of line protocol that are taken apart at a time: half a millisecond, and 15 ms where each two are a
bad line."""
_MOST: Final = 4 * 2**20
"""Bytes that the readings of a line may have: one of many fields repeats its tags in each reading."""


class Form(Protocol):
    """A form of lines. `self_ending` says that one which was cut off can't be taken for another that is
    whole."""

    self_ending: bool

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        """What may be stored of some lines and what not, in parts of a few milliseconds; each bad line by its
        offset in `lines`. `now_ns` (ns since 1970) is their arrival."""


async def sift_lines(form: Form, lines: bytes, now_ns: int) -> Parsed:
    """All parts in one, with a breath between them for whatever else the agent does."""
    parts: list[Parsed] = []
    pacer = Pacer()
    for part in form.parts(lines, now_ns):
        parts.append(part)
        await pacer.give_way()
    return join_sifted(parts)


def make_form(kind: Format, domain: str, *, precision: Precision, device_tag: str) -> Form:
    """The form of that name; `precision` and `device_tag` are for line protocol."""
    return _Ndjson(domain) if kind == "ndjson" else _Influx(domain, precision, device_tag)


class _Ndjson:
    self_ending = True

    def __init__(self, domain: str) -> None:
        self._domain = domain

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        return sift_parts(lines, self._domain, now_ns)


class _Influx:
    self_ending = False

    def __init__(self, domain: str, precision: Precision, device_tag: str) -> None:
        self._domain, self._precision, self._device_tag = domain, precision, device_tag
        self._lines: LineCache | None = None

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        # Imported here, so that an agent to which nobody speaks line protocol does not hold it in memory.
        from agent.leaf.inputs.formats.line_cache import LineCache

        if self._lines is None:
            self._lines = LineCache(self._domain, self._device_tag)
        for offset, some in _pieces(lines, _PIECE):
            yield self._sift(self._lines, some, offset, now_ns)

    def _sift(self, to: LineCache, lines: bytes, offset: int, now_ns: int) -> Parsed:
        from agent.leaf.inputs.formats.line_cache import PRECISIONS
        from agent.leaf.inputs.formats.line_protocol import Parsing

        # Text that is open at the end of its line must not take in the lines that follow.
        parsing = Parsing(lines, to, PRECISIONS[self._precision], now_ns, _MOST, apart=True)
        while parsing.step():
            pass
        bad = {number - 1: reason for number, reason in parsing.bad}
        return Parsed(parsing.payload, parsing.count, _placed(lines.split(b"\n"), bad, offset) if bad else ())


def _placed(rows: list[bytes], bad: dict[int, str], offset: int) -> tuple[tuple[int, str], ...]:
    """The bad ones of some lines by where they begin."""
    placed = []
    for number, row in enumerate(rows):
        if number in bad:
            placed.append((offset, bad[number]))
        offset += len(row) + 1
    return tuple(placed)


def _pieces(lines: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines of about `size` bytes at a time, with their offset."""
    place = 0
    while place < len(lines):
        end = lines.rfind(b"\n", place, place + size) + 1 or lines.find(b"\n", place) + 1 or len(lines)
        yield place, lines[place:end]
        place = end


@dataclass(frozen=True, slots=True)
class Parsed:
    """What may be stored of some lines: NDJSON of `count` readings; and what not: the offset of each bad
    line, with the reason."""

    payload: bytes
    count: int
    bad: tuple[tuple[int, str], ...] = ()


def sift(lines: bytes, domain: str, now_ns: int) -> Parsed:
    """Part good lines from bad ones. `now_ns` (ns since 1970) and `domain` fill in what a line leaves out."""
    return join_sifted(list(sift_parts(lines, domain, now_ns)))


def sift_parts(lines: bytes, domain: str, now_ns: int) -> Iterator[Parsed]:
    """The same in parts of a few milliseconds."""
    for good, bad in split_slices(lines, domain, now_ns):
        yield Parsed(good.payload, good.count, tuple(bad))


def join_sifted(parts: list[Parsed]) -> Parsed:
    """Parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Parsed(
        b"".join(part.payload for part in parts),
        sum(part.count for part in parts),
        tuple(bad for part in parts for bad in part.bad),
    )
