"""Caches names and tags of line protocol in stored form, and parses many common lines by column. No I/O.

The column parser accepts all lines or none, with the same results as `line_protocol`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agent import contract
from agent.leaf.inputs.formats.line_values import (
    Column,
    LineError,
    Stamps,
    check_name,
    join_columns,
    name_of,
    quoted,
    text_of,
    to_json,
    unescape,
)

PRECISIONS: Final = {
    **dict.fromkeys(("", "ns", "n"), 1),
    **dict.fromkeys(("us", "u", "µ", "µs"), 10**3),
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
"""Nanoseconds per name of `/write` and `/api/v2/write`."""
_CACHED: Final = 4 * 2**20
"""Bytes of cached names with their objects."""
_OBJECTS: Final = 200
"""Bytes of objects per cached name."""
_MAX_COLUMNS: Final = 256
"""Fields of a cached line."""
_MAX_ROW: Final = 64 * 1024
"""Bytes of its readings without values."""
_split_tags = re.compile(rb"(?<!\\),").split
_split_tag = re.compile(rb"(?<!\\)=").split
Row = tuple[bytes, bytes, bytes]
"""A line's readings with NUL at each start and `%b` for values, the text before the first value and after
each.
"""


class LineCache:
    """Caches lines of one domain. `device_tag` is the tag with the device."""

    def __init__(self, domain: str, device_tag: str) -> None:
        self._domain = domain
        self._device_tag = device_tag
        self.stamps = Stamps()
        self.heads: dict[bytes, _Head] = {}
        """By measurement and tags of a line; `head` adds missing ones."""
        self.rows: dict[bytes, dict[bytes, Row]] = {}
        """By all field names, then by measurement and tags; `row` adds missing ones."""
        self._shared: dict[bytes, bytes] = {}
        """Shared texts, kept once in memory."""
        self._cached = 0

    def head(self, key: bytes) -> _Head:
        """Return measurement and tags; raises `LineError`."""
        if key.startswith(b"#"):
            raise LineError("a line of comment")
        first, *pairs = _split_tags(key, contract.MAX_TAGS + 2)
        measurement = name_of(first, "the measurement")
        tags: dict[str, str] = {}
        for pair in pairs:
            if len(tags) > contract.MAX_TAGS:
                raise _too_many_tags()
            parts = _split_tag(pair, 2)
            if len(parts) != 2:
                raise LineError(f"tag {quoted(pair)} is not name=text", "tags")
            name = name_of(parts[0], "a tag's name")
            if name in tags:
                raise LineError(f"tag {name!r:.80} is there twice", "tags")
            tags[name] = text_of(unescape(parts[1]), f"tag {name!r:.80}")
            if not tags[name]:
                raise LineError(f"tag {name!r:.80} is empty", "tags")
        device = tags.pop(self._device_tag, self._domain)
        check_name(device, "the device")
        if len(tags) > contract.MAX_TAGS:
            raise _too_many_tags()
        tail = b',"tags":' + to_json(tags) + b"}\n" if tags else b"}\n"
        head = _Head(measurement, b'"device":' + to_json(device) + b',"metric":', self._share(tail))
        self._remember(len(key) + len(tail) + len(head.before) + _OBJECTS)
        self.heads[key] = head
        return head

    def field(self, head: _Head, raw: bytes) -> bytes:
        """Return the text before a field's value; raises `LineError`."""
        before = head.fields.get(raw)
        if before is not None:
            return before
        metric = f"{head.measurement}_{name_of(raw, 'a field')}"
        check_name(metric, "the metric")
        before = self._share(head.before + to_json(metric) + b',"value":')
        self._remember(len(raw) + len(before) + _OBJECTS)
        head.fields[raw] = before
        return before

    def row(self, key: bytes, names: bytes) -> Row:
        """Return a line's readings. `key` is newline, measurement and tags; `names` are newline and fields
        with `=`.

        Raises `LineError` for bad lines and lines too long to cache.
        """
        if (known := self.rows.get(names, {}).get(key)) is not None:
            return known
        raws = names[1:].split(b"=")
        begin = key[:1] == names[:1] == b"\n" and b"\n" not in key[1:] + names[1:]
        if not begin or raws.pop() or not 1 <= len(raws) <= _MAX_COLUMNS:
            raise LineError("no line of the commonest form")
        head = self.heads.get(key[1:]) or self.head(key[1:])
        if len(raws) * head.cost > _MAX_ROW:
            raise LineError("many fields with many tags")
        befores, tail = [self.field(head, raw) for raw in raws], head.tail.replace(b"%", b"%%")
        template = b"".join([b"\0" + before.replace(b"%", b"%%") + b"%b" + tail for before in befores])
        row = template, befores[0], head.tail
        self._remember(len(key) + len(names) + len(template) + 2 * _OBJECTS)
        self.rows.setdefault(names, {})[key] = row
        return row

    def _share(self, text: bytes) -> bytes:
        return self._shared.setdefault(text, text)

    def _remember(self, size: int) -> None:
        self._cached += size
        if self._cached > _CACHED:
            self.heads.clear()
            self.rows.clear()
            self._shared.clear()
            self._cached = size


class _Head:
    """Text before (by field) and after the value of readings with one measurement and tags."""

    __slots__ = ("before", "cost", "fields", "measurement", "tail")

    def __init__(self, measurement: str, before: bytes, tail: bytes) -> None:
        self.measurement = measurement
        self.before = before
        self.tail = tail
        self.cost: Final = len(before) + len(measurement) + len(tail) + 60
        """Most bytes of a reading beside field and value."""
        self.fields: dict[bytes, bytes] = {}


def _too_many_tags() -> LineError:
    return LineError(f"there are more than {contract.MAX_TAGS} tags; leave some out", "tags")


_BEYOND: Final = 2**53
"""From here an integer without `i` may lose digits as float."""
_Number = float | Annotated[int, Meta(gt=-_BEYOND, lt=_BEYOND)] | bool
_check: Final = msgspec.json.Decoder(list[_Number]).decode
_not_whole: Final = re.compile(rb"[^0-9,i-][0-9-]*+i").search
"""Values ending in `i` that are not sign and digits."""
_before, _tail = itemgetter(1), itemgetter(2)
"""Of a row."""
_MAX_LINES: Final = 1500
"""More short lines would exceed a step's readings."""


def take_rows(
    piece: bytes, cache: LineCache, unit: int, arrival: Callable[[], bytes], limit: int
) -> tuple[bytes, int, int] | None:
    """Return lines as NDJSON of at most `limit` bytes with counts of readings and lines; None for other
    forms.

    Lines have no quote, backslash or carriage return and are not idle. `unit` is nanoseconds per time step;
    `arrival` returns the start of readings without time.
    """
    # Each line begins with its newline, so that a token which begins a line can't be taken for another one.
    begun = b"\n" + piece.removesuffix(b"\n")
    parted = begun.replace(b"\n", b" \n")
    lines = len(parted) - len(begun)  # to count them, Python looks at every byte
    if lines > _MAX_LINES:
        return None
    tokens = parted.split(b" ")
    width, odd = divmod(len(tokens) - 1, lines)
    if odd or width not in (2, 3):
        return None
    keys, groups = tokens[1::width], tokens[2::width]
    # A name keeps its `=`, and the first of a line has its newline, for the same reason.
    fields = b"\n" + b",\n".join(groups)
    flat = fields.replace(b"=", b"=,").split(b",")
    names = flat[::2]
    try:
        values = _values(flat[1::2])
        joined = b"".join(names)
        # No name lacks its `=`, so none can be taken for a part of another one.
        if not len(names) == len(values) == joined.count(b"="):
            return None
        rows = _rows(keys, joined, cache)
        stamps = tokens[3::3] if width == 3 else None
        if len(names) == lines:
            starts = _starts(stamps, cache.stamps, unit) if stamps else [[arrival()] * lines]
            payload = join_columns([*starts, list(map(_before, rows)), values, list(map(_tail, rows))])
        else:
            each = _written(stamps, cache.stamps, unit) if stamps else [arrival()] * lines
            filled = [row[0].replace(b"\0", start) for row, start in zip(rows, each, strict=True)]
            payload = b"".join(filled) % tuple(values)
    except (LineError, msgspec.DecodeError):
        return None
    return (payload, len(values), lines) if len(payload) <= limit else None


def _rows(keys: Column, names: bytes, cache: LineCache) -> list[Row]:
    lines, known = len(keys), cache.rows
    first = names[: len(names) // lines]
    try:
        if names == first * lines:  # most likely
            return list(map(known[first].__getitem__, keys))
    except KeyError:
        pass
    each = names.replace(b"\n", b",\n").split(b",")[1:]
    if len(each) != lines:
        raise LineError("no line of the commonest form")
    try:
        return [known[text][key] for key, text in zip(keys, each, strict=True)]
    except KeyError:
        return [cache.row(key, text) for key, text in zip(keys, each, strict=True)]


def _starts(stamps: Column, of: Stamps, unit: int) -> list[Column]:
    """Return the starts of readings with these times, in columns."""
    columns = of.columns(stamps) if unit == 1 else None
    return [_written(stamps, of, unit)] if columns is None else columns


def _written(stamps: Column, of: Stamps, unit: int) -> Column:
    made = {stamp: of.written(stamp, unit) for stamp in set(stamps)}
    return [made[stamp] for stamp in stamps]


def _values(values: Column) -> Column:
    text = b",".join(values)
    if b"\t" in text or b"\n" in text:
        raise LineError("what JSON takes for a blank")
    if b"i" in text:
        if _not_whole(text):
            raise LineError("a number that is not whole and ends in i")
        text = (text + b",").replace(b"i,", b",")[:-1]
        values = text.split(b",")
    if len(_check(b"[" + text + b"]")) != len(values):
        raise LineError("one value, which is empty")
    return values
