"""Cuts batch lines of one shape into columns without an object per line. Pure.

A shape has the same fields, order and blanks, no escapes, and a number or bool as value. Batches with any
doubt are left to `lines`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from hub_jobs.refine.columns import Fields
from hub_jobs.refine.line_types import FAULTS
from hub_jobs.refine.messages import BatchText
from hub_jobs.refine.moments import Mask, moments, text_moments
from hub_jobs.source.binary import have, slices
from hub_jobs.tables.ranges import Numbers

_MAX_BYTES: Final = 1024**2
"""Largest text to cut."""
_QUOTE, _NEWLINE, _COMMA, _SPACE = b'"\n, '
_TEXT: Final = rb'"[^"]*"'
_FIELD: Final = re.compile(
    rb'( ?[{,] ?"(ts|device|metric|value|tags)" ?: ?)(?:%b|[-+.0-9A-Za-z]+|{ ?(?:%b ?: ?%b ?,? ?)*})'
    % (_TEXT, _TEXT, _TEXT)
)
_END: Final = re.compile(rb" ?}\Z")
_OF_NUMBER: Final = 2
_OF_TEXT: Final = 4
"""Quotes of a field without and with a text value."""
_VALUES: Final = msgspec.json.Decoder(list[float | int | bool])
_SECONDS: Final = msgspec.json.Decoder(list[float | int])


class _Field(NamedTuple):
    """A field of a shape. `before` is the text before its value, with an opening quote; `quotes` excludes
    tags.
    """

    name: str
    before: bytes
    quotes: int


class LineShape(NamedTuple):
    """The common fields of a batch's lines, in order, and the text after the last."""

    fields: tuple[_Field, ...]
    end: bytes


def shape_of(batch: BatchText) -> LineShape | None:
    """Return the shape of a batch's first line, None when it must be decoded line by line."""
    text = batch.text
    if len(text) > _MAX_BYTES or b"\\" in text or b"\x7f" in text:
        return None
    if np.count_nonzero(np.frombuffer(text, np.uint8) < _SPACE) != batch.lines - (text[-1:] != b"\n"):
        return None
    return _shape(text.partition(b"\n")[0])


def _shape(line: bytes) -> LineShape | None:
    fields: list[_Field] = []
    at = 0
    while found := _FIELD.match(line, at):
        before, name = found.groups()
        value = line[found.end(1) : found.end(1) + 1]
        if (before.lstrip()[:1] == b"{") != (not fields) or (value == b"{") != (name == b"tags"):
            return None
        is_text = value == b'"'
        before += value * is_text
        fields.append(_Field(name.decode(), before, _OF_TEXT if is_text else _OF_NUMBER))
        at = found.end()
    quotes = {field.name: field.quotes for field in fields}
    kinds = [quotes.get("metric"), quotes.get("device", _OF_TEXT), quotes.get("value")]
    is_reading = kinds == [_OF_TEXT, _OF_TEXT, _OF_NUMBER]
    end = _END.match(line, at)
    return (
        LineShape(tuple(fields), end.group()) if end and is_reading and len(quotes) == len(fields) else None
    )


class CutLines(NamedTuple):
    """Which texts have the shape in all lines, and their fields, None without any."""

    taken: Mask
    fields: Fields | None


def cut(shape: LineShape, texts: Sequence[bytes]) -> CutLines | None:
    """Cut texts (see `shape_of`); None when a value may be invalid."""
    ended = [text if text.endswith(b"\n") else text + b"\n" for text in texts]
    lines = _Lines(b"".join(ended))
    places, fits = lines.places(shape)
    firsts = np.searchsorted(lines.ends, np.cumsum([0, *map(len, ended[:-1])]))
    taken: Mask = np.logical_and.reduceat(fits, firsts)
    if not taken.any():
        return CutLines(taken, None)
    if not taken.all():
        kept = np.repeat(taken, np.diff(firsts, append=lines.ends.size))
        places = {name: (first[kept], end[kept]) for name, (first, end) in places.items()}
    try:
        return CutLines(taken, _fields(lines, shape, places))
    except (*FAULTS, pa.ArrowInvalid):
        return None


Places = dict[str, tuple[Numbers, Numbers]]
"""Start and end of each field's value per line."""


class _Lines:
    """Whole lines without escapes, so that each quote delimits a text."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        letters = np.frombuffer(text, np.uint8)
        self.ends = np.flatnonzero(letters == _NEWLINE)
        self._starts = np.append(0, self.ends[:-1] + 1)
        self._quotes = np.flatnonzero(letters == _QUOTE)
        self._each = self._if_alike()
        if self._each is None:
            last = np.searchsorted(self._quotes, self.ends)
            self._bounds = np.append(0, last[:-1]), last

    def _if_alike(self) -> Numbers | None:
        """Return quotes per line if all lines have equally many."""
        if not self._quotes.size or self._quotes.size % self.ends.size:
            return None
        each = self._quotes.reshape(self.ends.size, -1)
        is_so = (each[:, 0] >= self._starts).all() and (each[:, -1] < self.ends).all()
        return each if is_so else None

    def places(self, shape: LineShape) -> tuple[Places, Mask]:
        """Return places of all values and a mask of lines with the shape; places of other lines are
        meaningless.
        """
        left = sum(field.quotes for field in shape.fields)
        fits = self._have_quotes(left, or_more=any(field.name == "tags" for field in shape.fields))
        found: Places = {}
        behind, passed, in_tags = self._starts, 0, False
        for field, following in zip_longest(shape.fields, shape.fields[1:]):
            fits &= have(self._text, behind, field.before)
            first = behind + len(field.before)
            passed, left = passed + field.quotes, left - field.quotes
            in_tags = in_tags or field.name == "tags"
            # Tags have as many quotes as they have: what follows them is counted from behind.
            if field.quotes == _OF_TEXT:
                end = self._quote(-left - 1 if in_tags else passed - 1)
            elif following is None:
                end = self.ends - len(shape.end)
            else:
                end = self._quote(-left if in_tags else passed) - following.before.index(b'"')
            fits &= end >= first
            found[field.name] = first, end
            behind = end + (field.quotes == _OF_TEXT)
        fits &= (behind + len(shape.end) == self.ends) & have(self._text, behind, shape.end)
        return found, fits

    def slices(self, places: tuple[Numbers, Numbers]) -> pa.Array:
        """Return the texts at these ascending places."""
        return slices(self._text, *places)

    def _have_quotes(self, count: int, *, or_more: bool) -> Mask:
        if self._each is not None:
            each = self._each.shape[1]
            return np.full(self.ends.size, each >= count if or_more else each == count)
        counts = self._bounds[1] - self._bounds[0]
        enough: Mask = counts >= count if or_more else counts == count
        return enough

    def _quote(self, nth: int) -> Numbers:
        """Return the position of the nth quote per line; -1 counts backwards."""
        if self._each is not None:
            count = self._each.shape[1]
            return self._each[:, nth] if -count <= nth < count else self.ends
        if not self._quotes.size:
            return self.ends
        return self._quotes[np.clip(self._bounds[nth < 0] + nth, 0, self._quotes.size - 1)]


def _fields(lines: _Lines, shape: LineShape, places: Places) -> Fields:
    """Return fields as columns. Raises `ArrowInvalid` or decoder errors."""
    size = places["metric"][0].size

    def texts(name: str) -> pa.Array:
        return lines.slices(places[name]).cast(pa.string())

    if "ts" not in places:
        given = moments([msgspec.UNSET] * size)
    elif any(field.quotes == _OF_TEXT for field in shape.fields if field.name == "ts"):
        given = text_moments(texts("ts"))
    else:
        given = moments(_numbers(lines, places["ts"], _SECONDS))
    return Fields(
        given,
        texts("device") if "device" in places else pa.nulls(size, pa.string()),
        texts("metric"),
        _numbers(lines, places["value"], _VALUES),
        lines.slices(places["tags"]) if "tags" in places else pa.array([b""] * size, pa.binary()),
    )


def _numbers(lines: _Lines, places: tuple[Numbers, Numbers], decoder: msgspec.json.Decoder[Any]) -> list[Any]:
    """Decode numbers as one array with commas between. Raises decoder errors."""
    first, end = places
    found = lines.slices((first, end + 1))
    _, offsets, content = found.buffers()
    letters = np.frombuffer(content, np.uint8).copy()
    letters[np.frombuffer(offsets, np.int32)[1 : len(found) + 1] - 1] = _COMMA
    numbers: list[Any] = decoder.decode(b"[%b]" % letters.tobytes().removesuffix(b","))
    if len(numbers) != len(found):
        raise msgspec.DecodeError("not a number a line")
    return numbers
