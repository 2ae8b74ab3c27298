"""Converts decoded lines to Arrow columns, and checks times, tags and sizes by column. Pure.

Failing rows are returned for a check one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from agent.contract import MAX_INT, MAX_NAME, MAX_TEXT
from hub_jobs.refine.line_types import FAULTS, Bytes, ReadingLine, Tags
from hub_jobs.refine.lines import QUOTE
from hub_jobs.refine.moments import Mask, Moments, moments

_TAGS: Final = msgspec.json.Decoder(Tags)
_LINES: Final = msgspec.json.Encoder()
_MAP: Final = pa.map_(pa.string(), pa.string())
_ARRAY: Final = pa.list_(pa.float64())
_NEWLINE: Final = ord("\n")


class LineColumns(NamedTuple):
    """Columns from lines."""

    moments: Moments
    device: pa.Array
    """Null without device."""
    metric: pa.Array
    value: pa.Array
    text: pa.Array
    array: pa.ListArray
    content: pa.Array
    """Bytes values."""
    tags: pa.MapArray
    wrong: Mask
    """Rows with an invalid time, tags or size."""
    quotes: int = 0
    """Expected quotes of the lines without escapes and repeated fields, when counted."""


class Fields(NamedTuple):
    """Fields of rows, checked for times only."""

    moments: Moments
    device: pa.Array
    """Null without device."""
    metric: pa.Array
    values: list[Any]
    """Values from a decoder."""
    tags: pa.Array
    """JSON, empty without tags; a newline may follow."""


def columns(rows: Sequence[ReadingLine]) -> LineColumns:
    tags, of_tags = _raw_tags(rows)
    found = columns_of(
        Fields(
            moments([row.ts for row in rows]),
            _devices(rows),
            pa.array([row.metric for row in rows], pa.string()),
            [row.value for row in rows],
            tags,
        )
    )
    # Of each row the names of metric and value and the metric, and whatever else it has.
    quotes = 6 * len(rows) + 4 * (len(rows) - found.device.null_count) + found.moments.quotes + of_tags
    if found.text.null_count < len(found.text):
        quotes += 2 * sum([isinstance(row.value, str) for row in rows])
    quotes += 4 * (len(rows) - found.content.null_count)
    return found._replace(quotes=quotes)


def joined(parts: Sequence[Fields]) -> Fields:
    """Concatenate fields, without quote counts."""
    if len(parts) == 1:
        return parts[0]
    stamps, own, machine, wrong = (
        np.concatenate(column) for column in zip(*(part.moments[:4] for part in parts), strict=True)
    )
    return Fields(
        Moments(stamps, own, machine, wrong, quotes=0),
        pa.concat_arrays([part.device for part in parts]),
        pa.concat_arrays([part.metric for part in parts]),
        list(chain.from_iterable(part.values for part in parts)),
        pa.concat_arrays([part.tags for part in parts]),
    )


def columns_of(fields: Fields) -> LineColumns:
    """Return the columns of fields, without quote counts."""
    tags, wrong = _parsed_tags(fields.tags)
    wrong |= fields.moments.wrong
    value, text, array, content, too_large = _values(fields.values)
    bad = _bad_sizes(fields.metric), _bad_sizes(fields.device), _bad_sizes(text, 0, MAX_TEXT)
    wrong[[*too_large, *chain(*bad)]] = True
    return LineColumns(fields.moments, fields.device, fields.metric, value, text, array, content, tags, wrong)


class _Values(NamedTuple):
    """Value columns, and rows with an integer beyond 64 bits."""

    value: pa.Array
    text: pa.Array
    array: pa.ListArray
    content: pa.Array
    too_large: list[int]


def _values(given: list[Any]) -> _Values:
    """Return the value columns; may modify `given`. An integer that a double can't hold is rounded in `value`
    and has its digits in `text`.
    """
    present: set[Any] = set(map(type, given))
    if present <= {float}:
        return _Values(
            pa.array(given, pa.float64()),
            pa.nulls(len(given), pa.string()),
            pa.nulls(len(given), _ARRAY),
            pa.nulls(len(given), pa.binary()),
            [],
        )
    kinds: list[Any] = list(map(type, given))
    array = _taken(given, kinds, list, _ARRAY) if list in present else pa.nulls(len(given), _ARRAY)
    content = pa.nulls(len(given), pa.binary())
    if Bytes in present:
        content = _taken(given, kinds, Bytes, pa.binary())
    if present <= {float, list, Bytes}:
        return _Values(pa.array(given, pa.float64()), pa.nulls(len(given), pa.string()), array, content, [])
    too_large = []
    texts: list[str | None] = [None] * len(given)
    for at in [at for at, kind in enumerate(kinds) if kind is not float]:
        value = given[at]
        if kinds[at] is not int:
            texts[at] = value if isinstance(value, str) else _BOOLS[bool(value)]
            given[at] = None if isinstance(value, str) else float(value)
        elif not -MAX_INT - 1 <= value <= MAX_INT:
            too_large.append(at)
            given[at] = 0
    try:
        numbers = pa.array(given, pa.float64())
    except pa.ArrowInvalid:
        # Arrow takes no whole number beyond 2^53, though a double may hold it exactly.
        for at in [at for at, value in enumerate(given) if type(value) is int]:
            rounded = float(given[at])
            if int(rounded) != given[at]:
                texts[at] = str(given[at])
            given[at] = rounded
        numbers = pa.array(given, pa.float64())
    return _Values(numbers, pa.array(texts, pa.string()), array, content, too_large)


def _taken(given: list[Any], kinds: list[Any], kind: type, column: pa.DataType) -> pa.Array:
    """Move values of a kind (arrays or bytes) to their own column, leaving nulls."""
    taken: list[Any] = [None] * len(given)
    for at in [at for at, other in enumerate(kinds) if other is kind]:
        value, given[at], kinds[at] = given[at], None, float
        taken[at] = value.base64 if isinstance(value, Bytes) else value
    return pa.array(taken, column)


_BOOLS: Final = {True: "true", False: "false"}


def _parsed_tags(raw: pa.Array) -> tuple[pa.MapArray, Mask]:
    """Return the column `tags`, parsing each distinct text once, and a mask of invalid rows."""
    texts = raw.dictionary_encode()
    parsed: list[list[tuple[str, str]]] = []
    wrong: list[int] = []
    for at, text in enumerate(texts.dictionary.to_pylist()):
        try:
            parsed.append(list(_TAGS.decode(text.removesuffix(b"\n") or b"{}").items()))
        except FAULTS:
            parsed.append([])
            wrong.append(at)
    bad = np.zeros(len(raw), np.bool_)
    if wrong:
        bad = np.isin(texts.indices.to_numpy(), np.array(wrong, dtype=np.int32))
    return coded(pa.array(parsed, _MAP)).take(texts.indices), bad


def _raw_tags(rows: Sequence[ReadingLine]) -> tuple[pa.Array, int]:
    """Return tag texts, possibly with a trailing newline, and their number of quotes with field names."""
    given = [row.tags for row in rows]
    # Copied as lines, for an object of bytes a row takes three times as long.
    lines = _LINES.encode_lines(given)
    letters = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    if ends.size == len(given):
        offsets = np.zeros(len(given) + 1, dtype=np.int32)
        offsets[1:] = ends + 1
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(lines)]
        raw, least = pa.Array.from_buffers(pa.binary(), len(given), buffers), 1
    else:  # a newline within tags, as a direct message may have it
        raw, least = pa.array(list(map(bytes, given)), pa.binary()), 0
        letters = np.frombuffer(raw.buffers()[2] or b"", np.uint8)
    named = int(np.count_nonzero(pc.binary_length(raw).to_numpy() > least))
    return raw, int(np.count_nonzero(letters == QUOTE)) + 2 * named


def coded(given: pa.MapArray) -> pa.MapArray:
    """Return tags with dictionary-coded names and texts for Parquet."""
    return pa.MapArray.from_arrays(
        given.offsets, given.keys.dictionary_encode(), given.items.dictionary_encode()
    )


def _devices(rows: Sequence[ReadingLine]) -> pa.Array:
    given: list[Any] = [row.device for row in rows]
    if set(map(type, given)) != {str}:
        given = [None if device is UNSET else device for device in given]
    return pa.array(given, pa.string())


def _bad_sizes(texts: pa.Array, least: int = 1, most: int = MAX_NAME) -> list[int]:
    found = pc.min_max(pc.binary_length(texts)).as_py()
    if found["min"] is None or (found["min"] >= least and found["max"] <= most):
        return []
    length = pc.utf8_length(texts)
    bad = pc.or_(pc.less(length, least), pc.greater(length, most))
    rows: list[int] = np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)).tolist()
    return rows
