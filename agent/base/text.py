"""Text for people: lists of bounded length, and text from elsewhere made safe for a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters that JSON may hold as they are: U+007F, and U+0080 to U+009F in UTF-8."""


def listed(items: Sequence[str], most: int = 5, *, by: str = ", ", noun: str = "") -> str:
    """The first `most` items in a row and how many are left: `a, b and 3 more`, with a noun `a, b and 3 more
    ranges`."""
    left = len(items) - most
    return by.join(items[:most]) + (f" and {left} more{noun and f' {noun}'}" if left > 0 else "")


def harmless(lines: bytes) -> bytes:
    """JSON lines that mean the same and hold no control character that a terminal would obey."""
    return _CONTROL.sub(lambda match: b"\\u00%02x" % match[0][-1], lines)


def shown(text: str) -> str:
    """Text for a terminal: a character that is not printable becomes an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
