"""What is remembered of line protocol from one body to the next, in the form in which it is stored: names
with their tags. No I/O."""

from __future__ import annotations

import re
from typing import Final

from agent import contract
from agent.leaf.inputs.formats.line_values import (
    LineError,
    check_name,
    name_of,
    quoted,
    text_of,
    to_json,
    unescape,
)
from agent.leaf.inputs.formats.stamps import Stamps

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
Row = tuple[tuple[bytes, ...], bytes]
"""What stands before the value of each field of a line, and behind all of them."""


class LineCache:
    """Remembers the lines of one domain. `device_tag` names the tag whose value is the device."""

    def __init__(self, domain: str, device_tag: str) -> None:
        self._domain = domain
        self._device_tag = device_tag
        self.stamps = Stamps()
        self.heads: dict[bytes, _Head] = {}
        """By measurement and tags as they stand in a line; `head` adds a missing one."""
        self.rows: dict[tuple[bytes, bytes], Row] = {}
        """By measurement with tags and by all names of fields, as `row` has them; that adds a missing one."""
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
        head = _Head(measurement, b'"device":' + to_json(device) + b',"metric":', tail)
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
        before = head.before + to_json(metric) + b',"value":'
        self._remember(len(raw) + len(before) + _OBJECTS)
        head.fields[raw] = before
        return before

    def row(self, key: bytes, names: bytes, count: int) -> Row:
        """The readings of a line of `count` fields: `key` is a newline, measurement and tags, `names` are
        those of its fields with `=` behind each. Raises `LineError` for a line that is bad, and for one that
        is too long to be remembered."""
        known = self.rows.get((key, names))
        if known is not None and len(known[0]) == count:
            return known
        raws = names.split(b"=")
        if key[:1] != b"\n" or b"\n" in key[1:] or raws.pop() or len(raws) != count or count > _MAX_COLUMNS:
            raise LineError("no line of the commonest form")
        head = self.heads.get(key[1:]) or self.head(key[1:])
        if count * head.cost > _MAX_ROW:
            raise LineError("many fields with many tags")
        row = tuple([self.field(head, raw) for raw in raws]), head.tail
        self._remember(len(key) + len(names) + _OBJECTS)
        self.rows[key, names] = row
        return row

    def _remember(self, size: int) -> None:
        self._cached += size
        if self._cached > _CACHED:
            self.heads.clear()
            self.rows.clear()
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
