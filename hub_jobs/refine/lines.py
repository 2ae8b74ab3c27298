"""Decoding the lines of a batch: unpacking within bounds, then readings and bad lines. Pure.

It takes and refuses the lines that `agent.contract.parse_reading` does, at about a hundred times its
speed: what the fast decoder refuses is asked of the reference, line by line. Times and tags are checked
later, by column (`transforms.columns`), where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

import msgspec
import numpy as np
import zstandard
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from agent.contract import (
    EPOCH_LIMIT,
    MAX_INT,
    MAX_NAME,
    MAX_TAGS,
    MAX_TEXT,
    MAX_UNPACKED_BYTES,
    ContractError,
    parse_reading,
)

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Whole = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
_Time = (
    Annotated[datetime, Meta(tz=True)]
    | Annotated[float, Meta(ge=0, le=EPOCH_LIMIT)]
    | Annotated[int, Meta(ge=0, le=EPOCH_LIMIT)]
)
Tags = Annotated[dict[Name, Text], Meta(max_length=MAX_TAGS)]

_CleanName = Annotated[Name, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]

NO_TAGS: Final = Raw(b"{}")
FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a msgspec decoder raises over its input."""
_SLICE: Final = 1024**2
"""Bytes decoded at a time, so that a large batch is never all objects at once."""
_WINDOW: Final = 64 * 1024**2


class ReadingLine(Struct, gc=False, forbid_unknown_fields=True):
    """A reading as it stands in a line; `ts` and `tags` are not checked yet."""

    metric: Name
    value: float | Whole | Text | bool
    ts: str | float | int | UnsetType = UNSET
    device: Name | UnsetType = UNSET
    tags: Raw = NO_TAGS


class _Checked(Struct, gc=False, forbid_unknown_fields=True):
    """A reading with every field checked, which costs half as much again."""

    metric: _CleanName
    value: float | Whole | Text | bool
    ts: _Time | UnsetType = UNSET
    device: _CleanName | UnsetType = UNSET
    tags: Annotated[dict[_CleanName, Text], Meta(max_length=MAX_TAGS)] | UnsetType = UNSET


_LINE: Final = msgspec.json.Decoder(ReadingLine)
_CHECKED: Final = msgspec.json.Decoder(_Checked)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no reading: its number from 0, its bytes, and why. Of a dead letter, what its input had
    received, and the `place` at the edge where that stood."""

    number: int
    text: bytes
    reason: str
    place: str | None = None


@dataclass(slots=True)
class Slice:
    """Some whole lines of a batch: `rows` are the good ones, `numbers` theirs (None: from `first` on
    without a gap); `lines` is the text they came from."""

    first: int
    text: bytes
    rows: list[ReadingLine]
    numbers: list[int] | None = None
    bad: list[BadLine] = field(default_factory=list)


class UnpackError(Exception):
    """A payload that can't be unpacked; `too_large` when it would pass `MAX_UNPACKED_BYTES`."""

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


def unpack(payload: bytes, *, compressed: bool, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """The text of a batch, at most `limit` bytes; memory stays within it and zstd's window (64 MiB). Raises
    `UnpackError`."""
    if not compressed:
        if len(payload) > limit:
            raise UnpackError(f"holds {len(payload)} bytes, the most is {limit}", too_large=True)
        return payload
    try:
        return _unpacked(payload, limit)
    except zstandard.ZstdError as error:
        raise UnpackError(f"is not zstd: {error}") from None


def _unpacked(payload: bytes, limit: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    size = zstandard.frame_content_size(payload)
    # A frame need not say its size. As a stream it can be read up to the limit, but one that was cut off
    # looks whole.
    if size > limit or (size < 0 and len(unpacker.stream_reader(payload).read(limit + 1)) > limit):
        raise UnpackError(f"unpacks to more than {limit} bytes", too_large=True)
    frame = unpacker.decompressobj()
    text = frame.decompress(payload)
    if not frame.eof or frame.unused_data:
        raise UnpackError("is not one whole frame of zstd")
    return text


def count_lines(text: bytes) -> int:
    """How many lines there are; the last needs no newline."""
    return text.count(b"\n") + (not text.endswith(b"\n") and text != b"")


def decode(text: bytes) -> Iterator[Slice]:
    """The lines of a batch, some at a time."""
    number = 0
    for piece in _pieces(text):
        found = _fast(piece, number) or _slow(piece, number)
        yield found
        number += len(found.rows) + len(found.bad)


def decode_line(line: bytes) -> ReadingLine:
    """One line. Raises `ContractError` with the reference's reason."""
    try:
        _CHECKED.decode(line)
        return _LINE.decode(line)
    except FAULTS:
        return checked_line(line)


def checked_line(line: bytes) -> ReadingLine:
    """One line as the reference reads it, every field checked. Raises `ContractError`."""
    reading = parse_reading(line)
    return ReadingLine(
        reading.metric,
        reading.value,
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
    # Not decode_lines: that takes any blank between values, so also two readings in a line or one in two.
    try:
        rows = list(map(_LINE.decode, text.removesuffix(b"\n").split(b"\n")))
    except FAULTS:
        return None
    if _needs_check(text, rows) and not _all_checked(text):
        return None
    return Slice(first, text, rows)


def _needs_check(text: bytes, rows: list[ReadingLine]) -> bool:
    """Whether a line may name a field twice, or hold a control character in a name (JSON has those only
    escaped, but for U+007F). Of a field that comes twice the last value counts and each must be good, but of
    those that are not checked yet only the last is kept."""
    if b"\\" in text or b"\x7f" in text:
        return True
    times = sum([row.ts is not UNSET for row in rows])
    tags = sum([row.tags is not NO_TAGS for row in rows])
    return _occurrences(text, b'"ts"') > times or _occurrences(text, b"tags") > tags


def _occurrences(text: bytes, word: bytes) -> int:
    """How often a word of four bytes is there, for half of what `bytes.count` costs."""
    (number,) = np.frombuffer(word, np.uint32)
    return sum(
        int(np.count_nonzero(np.frombuffer(text, np.uint32, (len(text) - at) // 4, at) == number))
        for at in range(min(4, len(text)))
    )


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
            found.rows.append(decode_line(line))
        except ContractError as error:
            found.bad.append(BadLine(number, line, str(error)))
        else:
            found.numbers.append(number)
    return found
