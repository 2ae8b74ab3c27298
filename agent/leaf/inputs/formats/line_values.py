"""Converts names, values and times of line protocol, singly and by column. No I/O."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from struct import Struct
from typing import Final

import msgspec

from agent import contract

_float = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z").match
_unescape = re.compile(rb"\\([,= ])").sub
_control = re.compile(r"[\x00-\x1f\x7f]").search
is_whole = re.compile(rb"-?[0-9]{1,20}\Z").match
to_json = msgspec.json.Encoder().encode
_BOOLS: Final = {
    **dict.fromkeys((b"t", b"T", b"true", b"True", b"TRUE"), b"true"),
    **dict.fromkeys((b"f", b"F", b"false", b"False", b"FALSE"), b"false"),
}


class LineError(ValueError):
    """A line or data point is refused. `kind` is the metric label: `form`, `name`, `tags`, `value`, `time`,
    `size` or `histogram`.
    """

    def __init__(self, text: str, kind: str = "form") -> None:
        super().__init__(text)
        self.kind = kind


def scalar(text: bytes) -> bytes:
    """Convert an unquoted value to JSON; raises `LineError`."""
    boolean = _BOOLS.get(text)
    if boolean is not None:
        return boolean
    kind, digits = text[-1:], text[:-1]
    if kind in (b"i", b"u") and is_whole(digits) and not (kind == b"u" and digits.startswith(b"-")):
        value = int(digits)
        if -contract.MAX_INT - 1 <= value <= contract.MAX_INT:
            return b"%d" % value
        raise LineError(
            f"value {quoted(text)} is beyond a signed whole number of 64 bits; send it as a float or text",
            "value",
        )
    if _float(text):
        number = float(text)
        if math.isfinite(number):
            return repr(number).encode()
    raise LineError(f"value {quoted(text)} is not a number of 64 bits, bool or text in quotes", "value")


def string(raw: bytes) -> bytes:
    """Convert text between quotes to JSON; raises `LineError`."""
    # A backslash keeps the next one and a quote. In pieces, for an expression takes ten times as long.
    plain = b"\\".join([part.replace(b'\\"', b'"') for part in raw.split(b"\\\\")])
    return to_json(text_of(plain, "a value"))


def plain_string(raw: bytes) -> bytes:
    """Do `string` for text without backslash."""
    return to_json(text_of(raw, "a value"))


def unescape(raw: bytes) -> bytes:
    """Remove escapes from a name or tag."""
    return _unescape(rb"\1", raw) if b"\\" in raw else raw


def name_of(raw: bytes, label: str) -> str:
    """Return a valid name; raises `LineError`."""
    name = text_of(unescape(raw), label)
    check_name(name, label)
    return name


def check_name(name: str, label: str) -> None:
    """Raise `LineError` for a name that the contract refuses."""
    if not 1 <= len(name) <= contract.MAX_NAME:
        raise LineError(f"{label} must have 1 to {contract.MAX_NAME} characters, it has {len(name)}", "name")
    if _control(name):
        raise LineError(f"{label} {name!r:.80} holds a control character; leave it out", "name")


def text_of(raw: bytes, label: str) -> str:
    """Return valid text; raises `LineError`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise LineError(f"{label} is not UTF-8") from None
    if len(text) > contract.MAX_TEXT:
        raise LineError(f"{label} is longer than {contract.MAX_TEXT} characters", "size")
    return text


def tail_of(tags: dict[str, str]) -> bytes:
    """Return the end of a reading with these tags."""
    return b',"tags":' + to_json(tags) + b"}\n" if tags else b"}\n"


def quoted(raw: bytes) -> str:
    """Quote the beginning of bytes for a message."""
    return repr(raw[:80].decode(errors="backslashreplace"))


_MAX_SECONDS: Final = 8192
_EPOCH: Final = datetime(1970, 1, 1)
"""Without offset, which is written as Z."""
_FIRST_SECOND: Final = -62_135_596_800
"""Start of year 1."""
_DIGITS: Final = 19
"""Digits of nanoseconds since 1970, from 2001 to 2286."""
_PARTS: Final = Struct("10s9s")
"""Seconds and fraction. Not one repeated format, since `struct` caches only a hundred."""
_LOOK: Final = 16
"""Times sampled to detect repeats."""
Column = list[bytes]


class PayloadParts:
    """Readings of one body as NDJSON parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    @property
    def payload(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    @property
    def size(self) -> int:
        return sum(map(len, self._parts))


class Stamps:
    """Writes times of readings and caches their seconds."""

    def __init__(self) -> None:
        self._begun: dict[bytes, bytes] = {}
        """Starts of readings up to the fraction, by digits of the second."""

    def reading(self, ns: int) -> bytes:
        """Return a reading's start for a time in ns since 1970; raises `LineError`."""
        second, rest = divmod(ns, 10**9)
        return self._joined(b"%d" % second, (b"%09d" % rest).rstrip(b"0"))

    def written(self, stamp: bytes, unit: int) -> bytes:
        """Return a reading's start for a written time in `unit` nanoseconds; raises `LineError`."""
        if unit == 1 and len(stamp) == _DIGITS and stamp.isdigit():
            return self._joined(stamp[:10], stamp[10:].rstrip(b"0"))
        if not is_whole(stamp):
            raise LineError(f"time {quoted(stamp)} is not a whole number", "time")
        return self.reading(int(stamp) * unit)

    def machine(self, ns: int) -> bytes:
        """Return a reading's start for a time of this machine's clock."""
        return f'{{"ts":"{contract.machine_time(ns)}",'.encode()

    def columns(self, stamps: list[bytes]) -> list[Column] | None:
        """Return starts of readings as columns to join by row; None unless all times have nineteen digits."""
        digits = b"".join(stamps)
        if set(map(len, stamps)) != {_DIGITS} or not digits.isdigit():
            return None
        if 2 * len(set(stamps[:_LOOK])) <= len(stamps[:_LOOK]):
            made = {stamp: self.written(stamp, 1) for stamp in set(stamps)}
            return [list(map(made.__getitem__, stamps))]
        seconds, fractions = zip(*_PARTS.iter_unpack(digits), strict=True)
        try:
            begun = list(map(self._begun.__getitem__, seconds))
        except KeyError:
            begun = [self._begun.get(second) or self._remember(second) for second in seconds]
        rests = [fraction.rstrip(b"0") for fraction in fractions]
        if not all(rests):
            begun = [before if rest else before[:-1] for before, rest in zip(begun, rests, strict=True)]
        return [begun, rests, [b'Z",'] * len(stamps)]

    def of_numbers(self, times: tuple[int, ...]) -> list[Column]:
        """Return starts of readings as columns, for times in ns since 1970."""
        columns = self.columns(to_json(times)[1:-1].split(b","))
        return [list(map(self.reading, times))] if columns is None else columns

    def _joined(self, second: bytes, rest: bytes) -> bytes:
        begun = self._begun.get(second) or self._remember(second)
        return begun + rest + b'Z",' if rest else begun[:-1] + b'Z",'

    def _remember(self, second: bytes) -> bytes:
        if len(self._begun) >= _MAX_SECONDS:
            self._begun.clear()
        begun = self._begun[second] = _begin(int(second))
        return begun


def join_columns(columns: list[Column]) -> bytes:
    """Join columns of equal length row by row."""
    width, height = len(columns), len(columns[0])
    cells = [b""] * (width * height)
    for number, column in enumerate(columns):
        cells[number::width] = column
    return b"".join(cells)


def _begin(second: int) -> bytes:
    if not _FIRST_SECOND <= second < contract.EPOCH_LIMIT:
        raise LineError("the time is outside of the years 1 to 9999; see the parameter precision")
    return f'{{"ts":"{(_EPOCH + timedelta(seconds=second)).isoformat()}.'.encode()
