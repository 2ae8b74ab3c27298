"""From decoded lines to Arrow columns. What a line's own decoder left unchecked, times, tags and sizes, is
checked here, a column at a time; the rows that fail are named for the caller to look at one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Meta

from agent.contract import EPOCH_LIMIT, MACHINE_OFFSET, MAX_INT, MAX_NAME, MAX_TEXT
from hub_jobs.refine.line_types import FAULTS, Bytes, ReadingLine, Tags
from hub_jobs.refine.lines import QUOTE
from hub_jobs.tables.schemas import TIME

_TIME: Final = msgspec.json.Decoder(Annotated[datetime, Meta(tz=True)])
_TAGS: Final = msgspec.json.Decoder(Tags)
_LINES: Final = msgspec.json.Encoder()
_MAP: Final = pa.map_(pa.string(), pa.string())
_ARRAY: Final = pa.list_(pa.float64())
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Moments(NamedTuple):
    """Of every row: microseconds since 1970, whether it has a time of its own, whether that is by the clock
    of the agent's machine, and whether it is none."""

    stamps: Times
    own: Mask
    machine: Mask
    wrong: Mask
    quotes: int
    """How many quotes the fields have in all."""


class LineColumns(NamedTuple):
    """Rows as columns, as far as their lines tell."""

    moments: Moments
    device: pa.Array
    """Null where a line names none."""
    metric: pa.Array
    value: pa.Array
    text: pa.Array
    array: pa.ListArray
    content: pa.Array
    """Values that are bytes."""
    tags: pa.MapArray
    wrong: Mask
    """Rows with a time, tags or a size that may not be."""
    quotes: int
    """How many quotes the lines have if none names a field twice or has an escape."""


def columns(rows: Sequence[ReadingLine]) -> LineColumns:
    """The columns of rows."""
    moments = times(rows)
    device, metric = _devices(rows), pa.array([row.metric for row in rows], pa.string())
    value, text, array, content, too_large = _values(rows)
    tags_, wrong, of_tags = tags(rows)
    wrong |= moments.wrong
    wrong[[*too_large, *_bad_sizes(metric), *_bad_sizes(device), *_bad_sizes(text, 0, MAX_TEXT)]] = True
    # Of each row the names of metric and value and the metric, and whatever else it has.
    quotes = 6 * len(rows) + 4 * (len(rows) - device.null_count) + moments.quotes + of_tags
    if text.null_count < len(text):
        quotes += 2 * sum([isinstance(row.value, str) for row in rows])
    quotes += 4 * (len(rows) - content.null_count)
    return LineColumns(moments, device, metric, value, text, array, content, tags_, wrong, quotes)


def times(rows: Sequence[ReadingLine]) -> Moments:
    """The times of rows."""
    given = [row.ts for row in rows]
    kinds = set(map(type, given))
    stamps = np.zeros(len(given), dtype=np.int64)
    every = np.ones(len(given), dtype=np.bool_)
    if kinds == {str}:
        fast = _texts(given)
        if fast is not None:
            return Moments(fast[0], every, fast[1], _outside(fast[0]), 4 * len(given))
    elif kinds == {float}:
        seconds = np.array(given, dtype=np.float64)
        wrong = ~((seconds >= 0) & (seconds <= EPOCH_LIMIT))
        stamps = np.rint(np.where(wrong, 0, seconds) * 1e6).astype(np.int64)
        return Moments(stamps, every, ~every, wrong, 2 * len(given))
    own = np.array([ts is not UNSET for ts in given], dtype=np.bool_)
    wrong = np.zeros(len(given), dtype=np.bool_)
    for at in np.flatnonzero(own).tolist():
        found = _time(given[at])
        if found is None:
            wrong[at] = True
        else:
            stamps[at] = found
    machine = np.array([isinstance(ts, str) and ts.endswith(MACHINE_OFFSET) for ts in given], dtype=np.bool_)
    texts = sum([isinstance(ts, str) for ts in given])
    return Moments(stamps, own, machine, wrong, 2 * int(np.count_nonzero(own)) + 2 * texts)


def _texts(given: Sequence[object]) -> tuple[Times, Mask] | None:
    """RFC 3339 in UTC with up to six digits of a second, all of them, and which are by the machine's clock;
    None when one is of another form. Arrow also takes times without seconds, which the colon at 16
    excludes."""
    try:
        texts = pa.array(given, pa.string())
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
        letters = np.frombuffer(content, np.uint8)
        if (np.diff(ends) < _SHORTEST).any() or (letters[ends[:-1] + 16] != _COLON).any():
            return None
        machine = np.zeros(len(texts), np.bool_)
        if (letters[ends[1:] - 1] != _ZULU).any():
            by_machine = pc.ends_with(texts, MACHINE_OFFSET)
            if not pc.all(pc.or_(pc.ends_with(texts, "Z"), by_machine)).as_py():
                return None
            machine = by_machine.to_numpy(zero_copy_only=False)
        found: Times = texts.cast(TIME).cast(pa.int64()).to_numpy()
    except pa.ArrowException:
        return None
    return found, machine


_COLON, _ZULU, _NEWLINE = b":Z\n"
_SHORTEST: Final = 18
"""Characters of a time up to its seconds."""


def _time(value: object) -> int | None:
    """Microseconds since 1970 of a `ts`, None for one that is none."""
    if isinstance(value, str):
        try:
            moment = _TIME.decode(msgspec.json.encode(value))
        except FAULTS:
            return None
        stamp = (moment - _EPOCH) // _MICROSECOND
        return stamp if _FIRST <= stamp <= _LAST else None
    if isinstance(value, int | float) and 0 <= value <= EPOCH_LIMIT:
        return round(value * 1_000_000)
    return None


def _outside(stamps: Times) -> Mask:
    """Times that no calendar of years 1 to 9999 holds once they are in UTC."""
    return (stamps < _FIRST) | (stamps > _LAST)


class _Values(NamedTuple):
    """The columns of values, and the rows with a whole number that has more than 64 bits."""

    value: pa.Array
    text: pa.Array
    array: pa.ListArray
    content: pa.Array
    too_large: list[int]


def _values(rows: Sequence[ReadingLine]) -> _Values:
    """The values of rows. A whole number that a double does not hold exactly is rounded in `value` and stands
    with all its digits in `text`."""
    given: list[Any] = [row.value for row in rows]
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
    """Take the values of a kind, arrays or bytes, out of the others, where they leave a null."""
    taken: list[Any] = [None] * len(given)
    for at in [at for at, other in enumerate(kinds) if other is kind]:
        value, given[at], kinds[at] = given[at], None, float
        taken[at] = value.base64 if isinstance(value, Bytes) else value
    return pa.array(taken, column)


_BOOLS: Final = {True: "true", False: "false"}


def tags(rows: Sequence[ReadingLine]) -> tuple[pa.MapArray, Mask, int]:
    """The column `tags`, each distinct text parsed once; which rows have tags that are none; and how many
    quotes the fields have in all."""
    raw, content = _raw_tags(rows)
    texts = raw.dictionary_encode()
    parsed: list[list[tuple[str, str]]] = []
    wrong: list[int] = []
    absent = 0
    codes = texts.indices.to_numpy()
    for at, text in enumerate(texts.dictionary.to_pylist()):
        text = text.removesuffix(b"\n")
        if not text:
            absent += int(np.count_nonzero(codes == at))
        try:
            parsed.append(list(_TAGS.decode(text or b"{}").items()))
        except FAULTS:
            parsed.append([])
            wrong.append(at)
    quotes = int(np.count_nonzero(content == QUOTE)) + 2 * (len(rows) - absent)
    bad = np.isin(codes, np.array(wrong, dtype=np.int32)) if wrong else np.zeros(len(rows), np.bool_)
    return coded(pa.array(parsed, _MAP)).take(texts.indices), bad, quotes


def _raw_tags(rows: Sequence[ReadingLine]) -> tuple[pa.Array, npt.NDArray[np.uint8]]:
    """The texts of tags, each of which may have a newline behind it, and the letters of all."""
    given = [row.tags for row in rows]
    # Copied as lines, for an object of bytes a row takes three times as long.
    lines = _LINES.encode_lines(given)
    letters = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    if ends.size != len(given):  # a newline within tags, as a direct message may have it
        raw = pa.array(list(map(bytes, given)), pa.binary())
        return raw, np.frombuffer(raw.buffers()[2] or b"", np.uint8)
    offsets = np.zeros(len(given) + 1, dtype=np.int32)
    offsets[1:] = ends + 1
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(lines)]
    return pa.Array.from_buffers(pa.binary(), len(given), buffers), letters


def coded(given: pa.MapArray) -> pa.MapArray:
    """Tags with each distinct name and text once: Parquet takes them as they are."""
    return pa.MapArray.from_arrays(
        given.offsets, given.keys.dictionary_encode(), given.items.dictionary_encode()
    )


def _devices(rows: Sequence[ReadingLine]) -> pa.Array:
    given: list[Any] = [row.device for row in rows]
    if set(map(type, given)) != {str}:
        given = [None if device is UNSET else device for device in given]
    return pa.array(given, pa.string())


def _bad_sizes(texts: pa.Array, least: int = 1, most: int = MAX_NAME) -> list[int]:
    """The rows whose text has fewer characters than it must have, or more than it may."""
    found = pc.min_max(pc.binary_length(texts)).as_py()
    if found["min"] is None or (found["min"] >= least and found["max"] <= most):
        return []
    length = pc.utf8_length(texts)
    bad = pc.or_(pc.less(length, least), pc.greater(length, most))
    rows: list[int] = np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)).tolist()
    return rows
