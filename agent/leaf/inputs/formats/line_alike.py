"""Lines of line protocol that are all of the commonest form, taken apart at once: one field, a number that is
JSON as it stands, and a time in nanoseconds. No I/O."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = rb"([^ \n#][^ \n]*+) ([^,= \n]++)="
_FORM: Final = _NAMES + rb"(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,40})?) ([0-9]{10})([0-9]{9})(?:\n|\Z)"
_first = re.compile(_FORM).match
_all = re.compile(rb"(?m:^)" + _FORM).findall

Row = tuple[bytes, bytes, bytes, bytes, bytes]
"""Measurement with tags, field, value, second, and nanoseconds in nine digits, each as it stands."""


def alike(lines: bytes) -> list[Row]:
    """The rows of lines without quotes, backslashes and carriage returns; none where one has another form."""
    if not _first(lines):
        return []
    rows: list[Row] = _all(lines)
    return rows if len(rows) == lines.count(b"\n") + (lines[-1:] != b"\n") else []
