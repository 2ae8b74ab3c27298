"""Decodes message content to readings and bad lines, the second step of refine. Pure.

It accepts the same lines as `agent.contract.parse_reading`, about a hundred times faster; rejected lines are
given to that reference. Times, tags, sizes and repeated fields are checked later by column (`columns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Raw

from agent.contract import MAX_LARGE_LINE, ContractError, Letter, parse_letter, parse_reading
from hub_jobs.refine.line_types import (
    FAULTS,
    Array,
    CheckedLine,
    DirectObject,
    LineValue,
    ReadingLine,
    SmallLine,
    line_value,
)
from hub_jobs.refine.messages import BatchText, Content, DeadLetters, DirectValue

QUOTE: Final = ord('"')
_NEWLINE, _OPEN, _CLOSED = b"\n{}"
_SLICE: Final = 1024**2
"""Bytes decoded at once, to bound memory."""


_LINE: Final = msgspec.json.Decoder(ReadingLine)
_SMALL: Final = msgspec.json.Decoder(SmallLine)
_CHECKED: Final = msgspec.json.Decoder(CheckedLine)
_OBJECT: Final = msgspec.json.Decoder(DirectObject)
_SCALAR: Final = msgspec.json.Decoder(float | Annotated[int, Meta()] | str | bool | Array)
_ANY: Final = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no reading."""

    number: int
    """Line number from 0."""
    text: bytes
    """The line's bytes; for a dead letter, the received text."""
    reason: str
    place: str | None = None
    """The edge location of a dead letter."""


@dataclass(slots=True)
class Slice:
    """Some whole lines of a message."""

    first: int
    """Number of the first line."""
    text: bytes
    rows: list[ReadingLine]
    """Readings."""
    numbers: list[int] | None = None
    """Line numbers of readings; None for consecutive ones from `first`."""
    bad: list[BadLine] = field(default_factory=list)
    quotes: int | None = None
    """Unescaped quotes in the text; a surplus shows a repeated field. None when every field is checked."""


def decode_content(content: Content) -> Iterator[Slice]:
    """Yield a message's lines in slices."""
    match content:
        case BatchText(text, _):
            return _decode_batch(text)
        case DeadLetters(text):
            return iter([_decode_letters(text)])
        case DirectValue():
            return iter([_decode_direct(content)])


def recheck(text: bytes, line: ReadingLine, *, direct: bool) -> ReadingLine:
    """Decode a doubtful line by the reference, with the subject's names for a direct message. Raises
    `ContractError`.
    """
    return _checked_line(msgspec.json.encode(line) if direct else text)


def _decode_batch(text: bytes) -> Iterator[Slice]:
    number = 0
    for piece in _pieces(text):
        found = _fast(piece, number) or _slow(piece, number)
        yield found
        number += len(found.rows) + len(found.bad)


def _decode_line(line: bytes) -> ReadingLine:
    """Decode a line. Raises `ContractError` with the reference's reason."""
    try:
        _check_long(line)
        _CHECKED.decode(line)
        return _LINE.decode(line)
    except FAULTS:
        return _checked_line(line)


def _check_long(line: bytes) -> None:
    """Raise a decoder error when a line is too long for an array or bytes, before building it."""
    if len(line) - line.endswith(b"\n") > MAX_LARGE_LINE:
        _SMALL.decode(line)


def _checked_line(line: bytes) -> ReadingLine:
    reading = parse_reading(line)
    return ReadingLine(
        reading.metric,
        line_value(reading.value),
        UNSET if reading.ts is None else reading.ts,
        UNSET if reading.device is None else reading.device,
        Raw(msgspec.json.encode(dict(reading.tags))),
    )


def _pieces(text: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > _SLICE:
            end = text.rfind(b"\n", start, start + _SLICE) + 1 or text.find(b"\n", start + _SLICE) + 1 or end
        yield text[start:end]
        start = end


def _fast(text: bytes, first: int) -> Slice | None:
    letters = np.frombuffer(text, np.uint8)
    try:
        _check_long(text)  # of several lines none is as long
        rows = _decode_lines(text, letters)
    except FAULTS:
        return None
    if rows is None:
        return None
    # JSON has a control character in a name only escaped, but for U+007F.
    if b"\\" in text or b"\x7f" in text:
        return Slice(first, text, rows) if _all_checked(text) else None
    return Slice(first, text, rows, quotes=int(np.count_nonzero(letters == QUOTE)))


def _decode_lines(text: bytes, letters: npt.NDArray[np.uint8]) -> list[ReadingLine] | None:
    """Decode one reading per line, None when a line has another number. Raises decoder errors."""
    inner = np.flatnonzero(letters[:-1] == _NEWLINE)
    # The library's own way takes any blank between values. No newline within an object stands between two
    # braces: where each does, and there are as many readings as lines, every line is one reading.
    between = (
        text[:1] == b"{" and (letters[inner - 1] == _CLOSED).all() and (letters[inner + 1] == _OPEN).all()
    )
    if not between:
        return list(map(_LINE.decode, text.removesuffix(b"\n").split(b"\n")))
    rows = _LINE.decode_lines(text)
    return rows if len(rows) == inner.size + 1 else None


def checked(found: Slice) -> Slice:
    """Check every field of the lines. A repeated field counts by its last value, and each must be valid."""
    if found.quotes is None or _all_checked(found.text):
        return replace(found, quotes=None)
    return _slow(found.text, found.first)


def _all_checked(text: bytes) -> bool:
    try:
        _CHECKED.decode_lines(text)
    except FAULTS:
        return False
    return True


def _slow(text: bytes, first: int) -> Slice:
    found = Slice(first, text, [], [])
    assert found.numbers is not None
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), first):
        try:
            found.rows.append(_decode_line(line))
        except ContractError as error:
            found.bad.append(BadLine(number, line, str(error)))
        else:
            found.numbers.append(number)
    return found


def _decode_letters(text: bytes) -> Slice:
    found = Slice(0, text, [])
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n") if text else ()):
        try:
            letter = parse_letter(line)
        except ContractError as error:
            found.bad.append(BadLine(number, line, str(error)))
        else:
            found.bad.append(BadLine(number, letter.received, _letter_reason(letter), letter.at))
    return found


def _letter_reason(letter: Letter) -> str:
    omitted = f" (after {letter.omitted} that were counted only)" if letter.omitted else ""
    return f"{letter.reason}{omitted}"


def _decode_direct(direct: DirectValue) -> Slice:
    """Decode an object or bare value. Device and metric in an object must equal the subject's."""
    found = Slice(0, direct.payload, [])
    try:
        found.rows.append(_direct_line(*direct))
    except ContractError as error:
        found.bad.append(BadLine(0, direct.payload, str(error)))
    return found


def _direct_line(payload: bytes, device: str, metric: str) -> ReadingLine:
    if not payload.lstrip().startswith(b"{"):
        return ReadingLine(metric, _scalar(payload, metric), device=device)
    try:
        _check_long(payload)
        line = _OBJECT.decode(payload)
    except FAULTS:
        line = _checked_direct(payload, metric)
    for field_, given, due in (("device", line.device, device), ("metric", line.metric, metric)):
        if given not in (UNSET, due):
            raise ContractError(f"the message names the {field_} {given!r:.80}, its subject {due!r:.80}")
    return ReadingLine(metric, line.value, line.ts, device, line.tags)


def _scalar(payload: bytes, metric: str) -> LineValue:
    try:
        value = _SCALAR.decode(payload)
    except FAULTS as error:
        raise ContractError(f"neither a reading nor a bare value in JSON: {error}") from None
    return line_value(parse_reading(msgspec.json.encode({"metric": metric, "value": value})).value)


def _checked_direct(payload: bytes, metric: str) -> DirectObject:
    """Decode a direct message by the reference. Raises `ContractError`."""
    try:
        given = _ANY.decode(payload)
    except FAULTS as error:
        raise ContractError(f"not a JSON object: {error}") from None
    reading = parse_reading(msgspec.json.encode({"metric": metric, **given}))
    return DirectObject(
        line_value(reading.value),
        reading.metric,
        UNSET if reading.ts is None else reading.ts,
        UNSET if reading.device is None else reading.device,
        Raw(msgspec.json.encode(dict(reading.tags))),
    )
