"""What is remembered of line protocol from one body to the next, in the form in which it is stored: names
with their tags; and many lines at once, if all of them are of the commonest form. No I/O.

Many lines are taken by the column: they are cut into tokens by one split, names are looked up, and the values
of all lines are checked by one decoder of JSON. What this takes, it takes as a look at each line would
(`line_protocol`), and it takes all lines or none.
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
"""Nanoseconds by the names that `/write` and `/api/v2/write` have for them."""
_CACHED: Final = 4 * 2**20
"""Bytes of names that are remembered, with the objects that hold them."""
_OBJECTS: Final = 200
"""Bytes of the objects that hold a name and what is remembered of it."""
_MAX_COLUMNS: Final = 256
"""Fields of a line that is remembered as a whole."""
_MAX_ROW: Final = 64 * 1024
"""Bytes of its readings without their values."""
_split_tags = re.compile(rb"(?<!\\),").split
_split_tag = re.compile(rb"(?<!\\)=").split
Row = tuple[bytes, bytes, bytes]
"""Of the readings of a line: all of them, with a NUL where each begins and `%b` for its value; and what
stands before the value of the first, and behind each."""


class LineCache:
    """Remembers the lines of one domain. `device_tag` names the tag whose value is the device."""

    def __init__(self, domain: str, device_tag: str) -> None:
        self._domain = domain
        self._device_tag = device_tag
        self.stamps = Stamps()
        self.heads: dict[bytes, _Head] = {}
        """By measurement and tags as they stand in a line; `head` adds a missing one."""
        self.rows: dict[bytes, dict[bytes, Row]] = {}
        """By all names of fields of a line, and then by its measurement and tags, as `row` has them; that
        adds a missing one."""
        self._shared: dict[bytes, bytes] = {}
        """What is the same for many lines, so that it is in memory and in the processor's cache once."""
        self._cached = 0

    def head(self, key: bytes) -> _Head:
        """Measurement and tags, as they stand in a line; raises `LineError`."""
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
        """What stands before the value of a field; raises `LineError`."""
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
        """The readings of a line: `key` is a newline, measurement and tags, `names` are a newline and those
        of its fields with `=` behind each. Raises `LineError` for a line that is bad, and for one that is too
        long to be remembered."""
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
        """The same as one object for all that are equal."""
        return self._shared.setdefault(text, text)

    def _remember(self, size: int) -> None:
        self._cached += size
        if self._cached > _CACHED:
            self.heads.clear()
            self.rows.clear()
            self._shared.clear()
            self._cached = size


class _Head:
    """What the readings of one measurement and its tags share: all before the value, by field, and all after
    it."""

    __slots__ = ("before", "cost", "fields", "measurement", "tail")

    def __init__(self, measurement: str, before: bytes, tail: bytes) -> None:
        self.measurement = measurement
        self.before = before
        self.tail = tail
        self.cost: Final = len(before) + len(measurement) + len(tail) + 60
        """Bytes that each reading takes at most beside its field and value."""
        self.fields: dict[bytes, bytes] = {}


def _too_many_tags() -> LineError:
    return LineError(f"there are more than {contract.MAX_TAGS} tags; leave some out", "tags")


_BEYOND: Final = 2**53
"""A whole number without `i` is a float, which from here on may not be what its digits say."""
_Number = float | Annotated[int, Meta(gt=-_BEYOND, lt=_BEYOND)] | bool
_check: Final = msgspec.json.Decoder(list[_Number]).decode
_not_whole: Final = re.compile(rb"[^0-9,i-][0-9-]*+i").search
"""A value that ends in `i` and is more than a sign and digits."""
_before, _tail = itemgetter(1), itemgetter(2)
"""Of a row."""
_MAX_LINES: Final = 1500
"""Shorter lines are more readings than a step may have."""


def take_rows(
    piece: bytes, cache: LineCache, unit: int, arrival: Callable[[], bytes], limit: int
) -> tuple[bytes, int, int] | None:
    """Whole lines without quote, backslash, carriage return and idle line as NDJSON of at most `limit` bytes,
    with the number of readings and of lines; None where a line has another form, or is bad. `unit` is the
    nanoseconds of a step of times, `arrival` returns how a reading begins whose
    line has no time."""
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
    """The readings of each line; `names` are those of all fields, line by line."""
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
    """How the readings of these times begin, in columns."""
    columns = of.columns(stamps) if unit == 1 else None
    return [_written(stamps, of, unit)] if columns is None else columns


def _written(stamps: Column, of: Stamps, unit: int) -> Column:
    """The same in one column."""
    made = {stamp: of.written(stamp, unit) for stamp in set(stamps)}
    return [made[stamp] for stamp in stamps]


def _values(values: Column) -> Column:
    """The values as JSON."""
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
