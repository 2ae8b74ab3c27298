"""Recognises readings by line shape: the line with every digit replaced by 0. No I/O.

Digits do not matter unless a number has leading zeros. Lines of known shapes need no decoding: a request of
500 readings takes 10 to 20 % less processor time.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final

import msgspec

_LEAST: Final = 4 * 1024
"""Bytes from which shapes are tried."""
_SHAPES: Final = 1024
"""Most cached shapes."""
_NEW: Final = 256
"""New shapes per body; each costs microseconds."""
_LONGEST: Final = 500
"""Longest shape in bytes; only shorter lines stay within limits of names and tags."""
_LONGEST_PAUSE: Final = 64
"""Most bodies skipped while new shapes keep appearing."""
_NOUGHTS: Final = bytes.maketrans(b"123456789", b"000000000")
_MARK: Final = b"\n,"

_TEXT: Final = rb'"[^"\\\x00-\x1f\x7f]*"'
_TIME: Final = rb"0{1,11}(?:\.0+)?"
"""At most 99,999,999,999 seconds; not RFC 3339, whose digits matter."""
_VALUE: Final = rb"-?0{1,18}(?:\.0+)?|true|false|" + _TEXT
"""Without exponent and within 64 bits."""
_TAG: Final = _TEXT + rb": ?" + _TEXT
_FIELD: Final = rb'(?:"ts": ?%b|"(?:device|metric)": ?%b|"value": ?(?:%b)|"tags": ?\{(?:%b(?:, ?%b)*)?\})' % (
    _TIME,
    _TEXT,
    _VALUE,
    _TAG,
    _TAG,
)
_plain: Final = re.compile(rb"\{%b(?:, ?%b)*\}\n" % (_FIELD, _FIELD)).fullmatch
_check: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Raises for invalid JSON, such as leading zeros; builds nothing."""


class LineShapes:
    """Known shapes of readings with time and device."""

    def __init__(self) -> None:
        self._known: frozenset[bytes] = frozenset()
        self._pause = 1
        self._came = self._due = 0
        """Bodies learnt from or skipped, and the length of the pause."""

    def count(self, text: bytes) -> int:
        """Return the number of readings if all shapes are known, else 0. The last line needs a newline."""
        if self._pauses() or len(text) < _LEAST or _first(text) not in self._known:
            return 0
        if not self._known.issuperset(BytesIO(text.translate(_NOUGHTS))):
            return 0
        listed = b"".join((b"[", text.replace(b"\n", _MARK), b"0]"))
        try:
            _check(listed)
        except msgspec.DecodeError:
            return 0
        self._pause = max(1, self._pause // 2)
        return (len(listed) - len(text) - len(b"[0]")) // (len(_MARK) - 1)

    def learn(self, text: bytes) -> None:
        """Add the shapes of these readings, which have time and device."""
        if len(text) < _LEAST or not _is_plain(_first(text)):
            return
        # A file is decoded in a thread: a count of what came may lose a body, one of what is left passes 0.
        pauses, self._came = self._pauses(), self._came + 1
        if pauses:
            return
        self._due, self._pause = self._came + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        known = self._known.union(BytesIO(text.translate(_NOUGHTS)))
        new = known - self._known
        if len(new) <= _NEW and all(map(_is_plain, new)):
            self._known = known if len(known) <= _SHAPES else frozenset()

    def _pauses(self) -> bool:
        return self._came < self._due


def _first(text: bytes) -> bytes:
    return text[: text.find(b"\n") + 1].translate(_NOUGHTS)


def _is_plain(shape: bytes) -> bool:
    """Tell whether any digits without leading zeros keep a reading of this shape valid."""
    return len(shape) <= _LONGEST and _plain(shape) is not None
