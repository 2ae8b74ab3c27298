"""Single names and values of line protocol. No I/O."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agent import contract

_KNOWN: Final = 8192

_EPOCH: Final = datetime(1970, 1, 1)
"""Without its offset, which is written as Z."""

_FIRST_SECOND: Final = -62_135_596_800
"""The year 1 begins."""

_NAMES: Final = rb"([^ \n#][^ \n]*+) ([^,= \n]++)="

_FORM: Final = _NAMES + rb"(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,40})?) ([0-9]{10})([0-9]{9})(?:\n|\Z)"

_first = re.compile(_FORM).match

_all = re.compile(rb"(?m:^)" + _FORM).findall

Row = tuple[bytes, bytes, bytes, bytes, bytes]
"""Measurement with tags, field, value, second, and nanoseconds in nine digits, each as it stands."""

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
    """A line, or a data point, cannot be taken. `kind` is what is wrong in one word, by which it is counted:
    `form`, `name`, `tags`, `value`, `time`, `size` or `histogram`."""

    def __init__(self, text: str, kind: str = "form") -> None:
        super().__init__(text)
        self.kind = kind


def scalar(text: bytes) -> bytes:
    """A value without quotes as JSON; raises `LineError`."""
    known = _BOOLS.get(text)
    if known is not None:
        return known
    kind, digits = text[-1:], text[:-1]
    if kind in (b"i", b"u") and is_whole(digits) and not (kind == b"u" and digits.startswith(b"-")):
        value = int(digits)
        if -contract.MAX_INT - 1 <= value <= contract.MAX_INT:
            return b"%d" % value
        raise LineError(
            f"value {shown(text)} is beyond a signed whole number of 64 bits; send it as a float or text",
            "value",
        )
    if _float(text):
        number = float(text)
        if math.isfinite(number):
            return repr(number).encode()
    raise LineError(f"value {shown(text)} is no number of 64 bits, bool or text in quotes", "value")


def string(raw: bytes) -> bytes:
    """Text that stood in quotes, as JSON; raises `LineError`."""
    # A backslash keeps the next one and a quote. In pieces, for an expression takes ten times as long.
    plain = b"\\".join([part.replace(b'\\"', b'"') for part in raw.split(b"\\\\")])
    return to_json(text_of(plain, "a value"))


def plain_string(raw: bytes) -> bytes:
    """The same for text that holds no backslash."""
    return to_json(text_of(raw, "a value"))


def unescape(raw: bytes) -> bytes:
    """A name or tag as its sender meant it."""
    return _unescape(rb"\1", raw) if b"\\" in raw else raw


def name_of(raw: bytes, what: str) -> str:
    """A name that may be stored; raises `LineError`."""
    name = text_of(unescape(raw), what)
    check_name(name, what)
    return name


def check_name(name: str, what: str) -> None:
    """Raises `LineError` for a name that the contract refuses."""
    if not 1 <= len(name) <= contract.MAX_NAME:
        raise LineError(f"{what} must have 1 to {contract.MAX_NAME} characters, it has {len(name)}", "name")
    if _control(name):
        raise LineError(f"{what} {name!r:.80} holds a control character; leave it out", "name")


def text_of(raw: bytes, what: str) -> str:
    """Text that may be stored; raises `LineError`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise LineError(f"{what} is not UTF-8") from None
    if len(text) > contract.MAX_TEXT:
        raise LineError(f"{what} is longer than {contract.MAX_TEXT} characters", "size")
    return text


def shown(raw: bytes) -> str:
    """The beginning of something, for a message."""
    return repr(raw[:80].decode(errors="backslashreplace"))


def alike(lines: bytes) -> list[Row]:
    """The rows of lines without quotes, backslashes and carriage returns; none where one has another form."""
    if not _first(lines):
        return []
    rows: list[Row] = _all(lines)
    return rows if len(rows) == lines.count(b"\n") + (lines[-1:] != b"\n") else []


class Stamps:
    """Writes times, and remembers seconds: most readings share theirs with others."""

    def __init__(self) -> None:
        self._seconds: dict[int, bytes] = {}
        self.begun: dict[bytes, bytes] = {}
        """How readings begin, by the ten digits of their second; `begin` makes what is not here."""

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
        if len(self.begun) >= _KNOWN:
            self.begun.clear()
        begun = self.begun[second] = _begin(int(second))
        return begun

    def _second(self, second: int) -> bytes:
        if len(self._seconds) >= _KNOWN:
            self._seconds.clear()
        begun = self._seconds[second] = _begin(second)
        return begun


def _begin(second: int) -> bytes:
    if not _FIRST_SECOND <= second < contract.EPOCH_LIMIT:
        raise LineError("the time is outside of the years 1 to 9999; see the parameter precision")
    return f'{{"ts":"{(_EPOCH + timedelta(seconds=second)).isoformat()}'.encode()
