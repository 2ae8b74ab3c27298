"""Validates NDJSON quickly, accepting the same lines as `contract.parse_reading`. No I/O.

A missing `ts` (arrival, RFC 3339 for exactness) or `device` (domain) is inserted at the front. Blank lines
are removed, a final newline is added, and a carriage return becomes a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET, Struct

from agent import contract
from agent.leaf.inputs.formats.line_shapes import LineShapes
from agent.leaf.inputs.formats.reading_decoder import (
    ARRAY,
    CLEAN,
    LARGE_LINE,
    LONG,
    REFUSED,
    ReadingDecoder,
)

MAX_LISTED: Final = 100
"""Bad lines listed with reason."""
MAX_COUNTED: Final = 10_000
"""Bad lines after which counting stops, to bound time."""
_JOINED_AT_ONCE: Final = 2**15
"""Array elements joined at once, 80 bytes each."""
_SLICE: Final = 64 * 1024
"""Bytes decoded at once, to bound memory."""
_BAD_SLICE: Final = 8 * 1024
"""Bytes checked line by line at once."""
_WORDED: Final = 4 * 1024
"""Largest bad line given to the reference, which needs 40 times its memory."""
_TOO_LONG: Final = f"a line with an array or bytes has at most {LARGE_LINE} bytes"
_BLANK: Final = b" \t\r"
_blanks: Final = re.compile(rb"[ \t\r\n]*+").match

_DECODER: Final = ReadingDecoder()
_SHAPES: Final = LineShapes()


class Decoded(Struct, frozen=True, gc=False):
    """NDJSON of `count` valid readings with `ts` and `device`, newline-terminated."""

    payload: bytes
    count: int


_NOTHING: Final = Decoded(b"", 0)


class BodyTooLargeError(Exception):
    """A body's readings exceed its limit."""


class BadLinesError(ValueError):
    """Invalid lines as (line from 1, reason); nothing was taken. `more` counts unlisted ones, `counted` False
    for a partial count.
    """

    def __init__(self, lines: list[tuple[int, str]], more: int = 0, counted: bool = True) -> None:
        super().__init__(f"line {lines[0][0]}: {lines[0][1]}")
        self.lines = lines
        self.more = more
        self.counted = counted


def decode_ndjson(body: bytes, domain: str, now_ns: int) -> Decoded:
    """Validate NDJSON at about 0.6 µs a reading. Raises `BadLinesError` with line numbers of `body`.

    `now_ns` (ns since 1970) and `domain` fill missing fields.
    """
    return join_decoded(list(decode_slices(body, domain, now_ns)))


def decode_slices(body: bytes, domain: str, now_ns: int, room: int | None = None) -> Iterator[Decoded]:
    """Yield decoded parts of a few milliseconds, at most `room` bytes in all. Raises also
    `BodyTooLargeError`.

    Discard the parts after an error.
    """
    for begin, piece in _slices(body):
        if (decoded := _decode(piece, domain, now_ns)) is None:
            yield from _find_bad_lines(body, begin)
            return
        if room is not None and (room := room - len(decoded.payload)) < 0:
            raise BodyTooLargeError
        yield decoded


def decode_slice(body: bytes, domain: str, now_ns: int) -> Decoded | None:
    """Decode a body of one slice; None for a larger one or bad lines."""
    if len(body) > _SLICE:
        return None
    return _decode(body if body.endswith(b"\n") else body + b"\n", domain, now_ns)


def join_decoded(parts: list[Decoded]) -> Decoded:
    if len(parts) == 1:
        return parts[0]
    return Decoded(b"".join(part.payload for part in parts), sum(part.count for part in parts))


def split_slices(body: bytes, domain: str, now_ns: int) -> Iterator[tuple[Decoded, list[tuple[int, str]]]]:
    """Yield readings and bad lines (offset in `body`, reason) in parts of a few milliseconds."""
    named = 0
    for begin, piece in _slices(body):
        if (decoded := _decode(piece, domain, now_ns)) is not None:
            yield decoded, []
            continue
        for further, small in _slices(piece, size=_BAD_SLICE):
            good, bad = [], []
            for offset, line in _lines(small):
                if (error := _fault(line)) is None:
                    good.append(line)
                else:
                    reason = _reason(line, error) if named < MAX_LISTED else _words(error)
                    bad.append((begin + further + offset, reason))
                    named += 1
            decoded = _decode(b"\n".join(good) + b"\n", domain, now_ns)
            assert decoded is not None
            yield decoded, bad


def decode_array_slices(body: bytes, domain: str, now_ns: int) -> Iterator[Decoded]:
    """Validate a JSON array or one reading of at most 1 MiB, in parts as `decode_slices`.

    Raises `BadLinesError` with elements from 1 (1 also for invalid JSON).
    """
    # A carriage return is a blank like the newline, and as forbidden inside text: this makes nothing valid.
    flat = body.replace(b"\n", b"\r").strip(_BLANK)
    if flat.startswith(b"{"):
        yield from decode_slices(flat, domain, now_ns)
        return
    try:
        elements = ARRAY.decode(flat)
    except REFUSED as error:
        raise BadLinesError([(1, f"not an array of readings: {_words(error)}")]) from None
    parts: list[bytes] = []
    for start in range(0, len(elements), _JOINED_AT_ONCE):
        yield _NOTHING
        parts.append(b"\n".join(elements[start : start + _JOINED_AT_ONCE]))
    del elements  # many times the size of the body
    yield _NOTHING
    yield from decode_slices(b"\n".join(parts), domain, now_ns)


def _slices(body: bytes, start: int = 0, size: int = _SLICE) -> Iterator[tuple[int, bytes]]:
    while len(body) - start > size:
        end = body.rfind(b"\n", start, start + size) + 1 or body.find(b"\n", start + size) + 1
        if not end:
            break
        yield start, body[start:end]
        start = end
    rest = body[start:]
    yield start, rest if rest.endswith(b"\n") else rest + b"\n"


def _decode(text: bytes, domain: str, now_ns: int) -> Decoded | None:
    if count := _SHAPES.count(text):
        return Decoded(text, count)
    decoded = _decode_rows(text)
    if decoded is None:
        if not text.strip(_BLANK + b"\n"):
            return _NOTHING
        lines = [stripped for line in text.split(b"\n") if (stripped := line.strip(_BLANK))]
        if len(lines) == text.count(b"\n"):
            return None
        text = b"\n".join(lines) + b"\n"
        if (decoded := _decode_rows(text)) is None:
            return None
    rows, full = decoded
    if b"\r" in text:
        text = text.replace(b"\r", b" ")
    if full:
        _SHAPES.learn(text)
    else:
        text = _filled(text, rows, domain, now_ns)
    return Decoded(text, len(rows))


def _decode_rows(text: bytes) -> tuple[list[Any], bool] | None:
    try:
        if len(text) > LARGE_LINE + 1:  # longer than a slice, so it is one line
            LONG.decode(text)
        rows, full = _DECODER.decode_lines(text)
        if b"\\" in text or b"\x7f" in text:  # control characters: escaped in JSON, but for U+007F
            CLEAN.decode_lines(text)
    except REFUSED:
        return None
    return rows, full


def _filled(text: bytes, rows: list[Any], domain: str, now_ns: int) -> bytes:
    ts = f'"ts":"{contract.machine_time(now_ns)}",'.encode()
    device = f'"device":"{domain}",'.encode()
    heads = b"{", b"{" + ts, b"{" + device, b"{" + ts + device
    out = []
    for row, line in zip(rows, text.split(b"\n"), strict=False):
        lacks = (row.ts is UNSET) + 2 * (row.device is UNSET)
        out.append(heads[lacks] + line[line.index(b"{") + 1 :])
    out.append(b"")
    return b"\n".join(out)


def _find_bad_lines(body: bytes, begin: int) -> Iterator[Decoded]:
    """Check lines from the first bad slice on and raise `BadLinesError`. Yields b"" parts every few
    milliseconds.
    """
    listed: list[tuple[int, str]] = []
    more, number = 0, body.count(b"\n", 0, begin) + 1
    for start, whole in _slices(body, begin):
        if start > begin and _decode(whole, "", 0) is not None:
            number += whole.count(b"\n")
            yield _NOTHING
            continue
        for _, piece in _slices(whole, size=_BAD_SLICE):
            for offset, line in _lines(piece):
                if (error := _fault(line)) is None:
                    continue
                if len(listed) < MAX_LISTED:
                    listed.append((number + piece.count(b"\n", 0, offset), _reason(line, error)))
                elif (more := more + 1) >= MAX_COUNTED:
                    raise BadLinesError(listed, more, counted=False)
            number += piece.count(b"\n")
            yield _NOTHING
    raise BadLinesError(listed, more)


def _lines(piece: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield nonblank lines with offsets, skipping blank stretches at once."""
    offset = 0
    while (text := _blanks(piece, offset).end()) < len(piece):  # type: ignore[union-attr]
        begin = piece.rfind(b"\n", offset, text) + 1 or offset
        end = piece.find(b"\n", text)
        yield begin, piece[begin:end]
        offset = end


def _fault(line: bytes) -> Exception | None:
    try:
        (CLEAN if len(line) <= LARGE_LINE else LONG).decode(line)
    except REFUSED as error:
        return error
    return None


def _reason(line: bytes, error: Exception) -> str:
    """Return why a line is refused, in the reference's words unless too long."""
    if len(line) <= _WORDED:
        try:
            contract.parse_reading(line)
        except contract.ContractError as refusal:
            return str(refusal)
    return _words(error)


_LARGE: Final = (
    (
        "`array` of length <=",
        f"value has more than {contract.MAX_ARRAY} numbers; send them as several readings",
    ),
    (
        "`bytes` of length <=",
        f"value has more than {contract.MAX_BYTES} bytes; send them as several readings",
    ),
    ("got `array` - at `$.value`", _TOO_LONG),
    ("got `object` - at `$.value`", _TOO_LONG),
)


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    return next((words for part, words in _LARGE if part in text), text)
