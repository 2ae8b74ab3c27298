"""What is remembered of line protocol from one body to the next, in the form in which it is stored: names
with their tags, and times. No I/O."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
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

PRECISIONS: Final = {
    **dict.fromkeys(("", "ns", "n"), 1),
    **dict.fromkeys(("us", "u", "µ", "µs"), 10**3),
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
"""Nanoseconds by the names that `/write` and `/api/v2/write` have for them."""
_CACHED: Final = 2**20
"""Bytes of names that are remembered."""
_MAX_SECONDS: Final = 8192
_EPOCH: Final = datetime(1970, 1, 1)
"""Without its offset, which is written as Z."""
_FIRST_SECOND: Final = -62_135_596_800
"""The year 1 begins."""
_split_tags = re.compile(rb"(?<!\\),").split
_split_tag = re.compile(rb"(?<!\\)=").split


class LineCache:
    """Remembers the lines of one domain. `device_tag` names the tag whose value is the device."""

    def __init__(self, domain: str, device_tag: str) -> None:
        self._domain = domain
        self._device_tag = device_tag
        self.stamps = Stamps()
        self.heads: dict[bytes, _Head] = {}
        """By measurement and tags as they stand in a line; `head` adds a missing one."""
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
        self._remember(len(key) + len(tail) + len(head.before))
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
        self._remember(len(raw) + len(before))
        head.fields[raw] = before
        return before

    def _remember(self, size: int) -> None:
        self._cached += size
        if self._cached > _CACHED:
            self.heads.clear()
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


class Stamps:
    """Writes times as readings have them, and remembers seconds: most readings share theirs with others."""

    def __init__(self) -> None:
        self._seconds: dict[int, bytes] = {}
        self.begun: dict[bytes, bytes] = {}
        """How readings begin, by the ten digits of their second; `begin` adds a missing one."""

    def reading(self, ns: int) -> bytes:
        """How a reading of this time (ns since 1970) begins; raises `LineError`."""
        second, rest = divmod(ns, 10**9)
        begun = self._seconds.get(second) or self._second(second)
        return begun + (b".%09d" % rest).rstrip(b"0") + b'Z",' if rest else begun + b'Z",'

    def machine(self, ns: int) -> bytes:
        """The same for a time by this machine's clock."""
        return f'{{"ts":"{contract.machine_time(ns)}",'.encode()

    def digits(self, ns: bytes) -> bytes:
        """The same for nineteen digits, which is how nearly all senders write nanoseconds."""
        begun = self.begun.get(ns[:10]) or self.begin(ns[:10])
        rest = ns[10:].rstrip(b"0")
        return begun + b"." + rest + b'Z",' if rest else begun + b'Z",'

    def begin(self, second: bytes) -> bytes:
        """How the readings of a second begin, up to its fraction; raises `LineError`."""
        if len(self.begun) >= _MAX_SECONDS:
            self.begun.clear()
        begun = self.begun[second] = _begin(int(second))
        return begun

    def _second(self, second: int) -> bytes:
        if len(self._seconds) >= _MAX_SECONDS:
            self._seconds.clear()
        begun = self._seconds[second] = _begin(second)
        return begun


def _too_many_tags() -> LineError:
    return LineError(f"there are more than {contract.MAX_TAGS} tags; leave some out", "tags")


def _begin(second: int) -> bytes:
    if not _FIRST_SECOND <= second < contract.EPOCH_LIMIT:
        raise LineError("the time is outside of the years 1 to 9999; see the parameter precision")
    return f'{{"ts":"{(_EPOCH + timedelta(seconds=second)).isoformat()}'.encode()
