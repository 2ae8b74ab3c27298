"""Single names and values of line protocol. No I/O."""

from __future__ import annotations

import math
import re
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
    """A line, or a data point, cannot be taken. `kind` is what is wrong in one word, by which it is counted:
    `form`, `name`, `tags`, `value`, `time`, `size` or `histogram`."""

    def __init__(self, text: str, kind: str = "form") -> None:
        super().__init__(text)
        self.kind = kind


def scalar(text: bytes) -> bytes:
    """A value without quotes as JSON; raises `LineError`."""
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
    raise LineError(f"value {quoted(text)} is no number of 64 bits, bool or text in quotes", "value")


def string(raw: bytes) -> bytes:
    """The text between quotes as JSON; raises `LineError`."""
    # A backslash keeps the next one and a quote. In pieces, for an expression takes ten times as long.
    plain = b"\\".join([part.replace(b'\\"', b'"') for part in raw.split(b"\\\\")])
    return to_json(text_of(plain, "a value"))


def plain_string(raw: bytes) -> bytes:
    """Like `string`, for text without a backslash."""
    return to_json(text_of(raw, "a value"))


def unescape(raw: bytes) -> bytes:
    """A name or tag as its sender meant it."""
    return _unescape(rb"\1", raw) if b"\\" in raw else raw


def name_of(raw: bytes, label: str) -> str:
    """A name that may be stored; raises `LineError`."""
    name = text_of(unescape(raw), label)
    check_name(name, label)
    return name


def check_name(name: str, label: str) -> None:
    """Raises `LineError` for a name that the contract refuses."""
    if not 1 <= len(name) <= contract.MAX_NAME:
        raise LineError(f"{label} must have 1 to {contract.MAX_NAME} characters, it has {len(name)}", "name")
    if _control(name):
        raise LineError(f"{label} {name!r:.80} holds a control character; leave it out", "name")


def text_of(raw: bytes, label: str) -> str:
    """Text that may be stored; raises `LineError`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise LineError(f"{label} is not UTF-8") from None
    if len(text) > contract.MAX_TEXT:
        raise LineError(f"{label} is longer than {contract.MAX_TEXT} characters", "size")
    return text


def quoted(raw: bytes) -> str:
    """The beginning of bytes, for a message."""
    return repr(raw[:80].decode(errors="backslashreplace"))
