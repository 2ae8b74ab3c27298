"""Text from elsewhere, made safe for a terminal. Pure."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters that JSON may hold as they are: U+007F, and U+0080 to U+009F in UTF-8."""


def harmless(lines: bytes) -> bytes:
    """JSON lines that mean the same and hold no control character that a terminal would obey."""
    return _CONTROL.sub(lambda found: b"\\u00%02x" % found[0][-1], lines)


def shown(text: str) -> str:
    """Text for a terminal: what is not printable is written as an escape."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
