"""Shapes of lines that are readings: a line with every digit replaced by a nought. No I/O.

The lines of a sender differ mostly in their digits, and which digits stand in a line says nothing about
whether it is a reading, as long as no number begins with a nought that does not stand alone. So lines whose
shapes are those of readings seen before need no record each: that takes two thirds of the time.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final

import msgspec

_LEAST: Final = 4 * 1024
"""Bytes of lines from which on their shapes are looked for."""
_SHAPES: Final = 1024
"""Shapes that are kept."""
_NEW: Final = 256
"""Shapes that a body may add: to look at one takes some microseconds."""
_LONGEST: Final = 500
"""Bytes of a shape. A line needs more to have more tags or a longer name than a reading may."""
_LONGEST_PAUSE: Final = 64
"""Bodies for which shapes are not looked for, while one after the other has a new one."""
_NOUGHTS: Final = bytes.maketrans(b"123456789", b"000000000")
_MARK: Final = b"\n,"

_TEXT: Final = rb'"[^"\\\x00-\x1f\x7f]*"'
_TIME: Final = rb"0{1,11}(?:\.0+)?"
"""At most 99,999,999,999, which is not as late as a time may be; none of RFC 3339, whose digits count."""
_VALUE: Final = rb"-?0{1,18}(?:\.0+)?|true|false|" + _TEXT
"""Without an exponent, and small enough for 64 bits."""
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
"""Raises for text that is no JSON, so for a number that begins with a nought too many; makes nothing."""


class LineShapes:
    """Shapes of readings that have a time and a device."""

    def __init__(self) -> None:
        self._known: frozenset[bytes] = frozenset()
        self._pause = 1
        self._came = self._due = 0
        """Bodies that were learnt of or passed over, and how many of them end the pause."""

    def count(self, text: bytes) -> int:
        """How many readings these lines are, if all of them have shapes that are known; else 0, which says
        nothing about them. The last line ends with a newline, too."""
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
        """Know the shapes of these lines from now on; all are readings with a time and a device."""
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
    """The shape of the first line."""
    return text[: text.find(b"\n") + 1].translate(_NOUGHTS)


def _is_plain(shape: bytes) -> bool:
    """Whether a reading of this shape stays one whatever its digits are, but for noughts at the front."""
    return len(shape) <= _LONGEST and _plain(shape) is not None
