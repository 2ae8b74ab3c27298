"""Records out of a received block by the column: numpy finds where frames and their parts begin, and no
object is made for a message. It rejects nothing: where anything is in doubt it stops, and what is left is
read frame by frame (`protocol.scan`). Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from hub_jobs.source.binary import Letters, Mask, Numbers, have, slices
from hub_jobs.source.protocol import Frames, Records, scan

_LEAST_BLOCK: Final = 65_536
"""Bytes of a block that is worth it: what is done for a block costs as much as 200 frames read one by one."""
_MOST_FRAME: Final = 1_024
"""Bytes of the first message: of a larger one to look at each byte costs more than to read it."""
_MOST_CUTS: Final = 4
"""Of a block: in each of more pieces there would be few records."""
_PIECE: Final = 2_048
"""Bytes that are read frame by frame where a block can't be cut, most often for the end of a pull."""
_NEWLINE, _RETURN, _BLANK, _ZERO, _HMSG = b"\n\r 0H"
_MSG: Final = b"MSG "
_DIGITS: Final = 8
"""Of the longest number of bytes."""
_LINE_MARKS: Final = 7
"""Blanks and line end of a control line that says how long the headers are."""


def take(data: bytes, sid: bytes, frames: Frames) -> tuple[int, int]:
    """`protocol.scan`, quicker."""
    taken = 0
    for _ in range(_MOST_CUTS):
        records, size = cut(data, sid)
        if records is None:
            break
        frames.records().append(records)
        size += scan(data[size : size + _PIECE], sid, frames)[0]
        taken, data = taken + size, data[size:]
    size, needed = scan(data, sid, frames)
    return taken + size, needed


def cut(data: bytes, sid: bytes) -> tuple[Records | None, int]:
    """The records at the start of a block that `protocol.scan` would take for such, or the first of them,
    None where it is not worth it; and how many bytes they are."""
    if len(data) < _LEAST_BLOCK or not _is_small(data[: data.find(b"\r\n")]):
        return None, 0
    letters = np.frombuffer(data, np.uint8)
    marks = np.flatnonzero(letters <= _BLANK)
    starts, has_headers = _starts(data, letters, marks)
    at = np.searchsorted(marks, starts)
    whole = int(np.searchsorted(at, marks.size - _LINE_MARKS, side="right"))
    starts, has_headers, at = starts[:whole], has_headers[:whole], at[:whole]
    if not whole or starts[0]:
        return None, 0
    subject, sid_, reply, size, last = (marks[at + nth] for nth in (0, 1, 2, 3, 3 + has_headers))
    line_end = marks[at + 4 + has_headers]
    fits = (letters[line_end] == _RETURN) & (letters[np.minimum(line_end + 1, len(data) - 1)] == _NEWLINE)
    for blank in (subject, sid_, reply, size, last):
        fits &= letters[blank] == _BLANK
    fits &= (reply - sid_ == len(sid) + 1) & have(data, sid_ + 1, sid)
    of_headers, fits_headers = _numbers(letters, size + 1, marks[at + 4])
    of_all, fits_all = _numbers(letters, last + 1, line_end)
    body = line_end + 2
    middle, end = body + np.where(has_headers, of_headers, 0), body + of_all
    fits &= fits_headers & fits_all & (middle <= end) & (end + 2 <= len(data))
    # Also a payload may look like a frame: one begins where the one before it ends.
    fits[1:] &= end[:-1] + 2 == starts[1:]
    count = whole if fits.all() else int(fits.argmin())
    if not count:
        return None, 0
    parts = ((subject + 1, sid_), (reply + 1, size), (body, middle), (middle, end))
    records = Records(*(slices(data, first[:count], end[:count]) for first, end in parts))
    return records, int(end[count - 1]) + 2


def _is_small(line: bytes) -> bool:
    size = line[line.rfind(b" ") + 1 :]
    return len(size) <= _DIGITS and size.isdigit() and int(size) < _MOST_FRAME


def _starts(data: bytes, letters: Letters, marks: Numbers) -> tuple[Numbers, Numbers]:
    """Where lines begin with `MSG` or `HMSG`, and of each whether (1 or 0) it is the latter."""
    lines = np.append(0, marks[letters[marks] == _NEWLINE] + 1)
    lines = lines[: int(np.searchsorted(lines, letters.size))]
    first = letters[lines]
    lines = lines[(first == _HMSG) | (first == _MSG[0])]
    has_headers = (letters[lines] == _HMSG).astype(np.int64)
    found = have(data, lines + has_headers, _MSG)
    return lines[found], has_headers[found]


def _numbers(letters: Letters, first: Numbers, end: Numbers) -> tuple[Numbers, Mask]:
    """The numbers at these places, and which of them are some."""
    width = end - first
    fits = (width > 0) & (width <= _DIGITS)
    numbers = np.zeros(first.size, dtype=np.int64)
    for place in range(min(int(width.max()), _DIGITS)):
        digit = letters[end - 1 - place] - _ZERO
        inside = width > place
        fits &= (digit <= 9) | ~inside
        numbers += np.where(inside, digit, 0).astype(np.int64) * 10**place
    return numbers, fits
