"""Many lines of line protocol at once, if all of them are of the commonest form. No I/O.

The work is done by the column: the lines are cut into tokens by one split, names are looked up, and the
values of all lines are checked by one decoder of JSON. What this takes, it takes as a look at each line
would (`line_protocol`), and it takes all lines or none.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agent.leaf.inputs.formats.line_cache import LineCache
from agent.leaf.inputs.formats.line_values import LineError
from agent.leaf.inputs.formats.stamps import Column, Stamps, are_digits, join_columns

_BEYOND: Final = 2**53
"""A whole number without `i` is a float, which from here on may not be what its digits say."""
_Number = float | Annotated[int, Meta(gt=-_BEYOND, lt=_BEYOND)] | bool
_check: Final = msgspec.json.Decoder(list[_Number]).decode
_not_whole: Final = re.compile(rb"[^0-9,i-][0-9-]*+i").search
"""A value that ends in `i` and is more than a sign and digits."""
_MAX_LINES: Final = 1000
"""Shorter lines are more readings than a step may have."""


def take_rows(
    piece: bytes, cache: LineCache, unit: int, now: bytes, limit: int
) -> tuple[bytes, int, int] | None:
    """Whole lines without quote, backslash, carriage return and idle line as NDJSON of at most `limit` bytes,
    with the number of readings and of lines; None where a line has another form, or is bad. `unit` is the
    nanoseconds of a step of times, `now` how a reading begins whose line has no time."""
    lines = piece.count(b"\n") + (not piece.endswith(b"\n"))
    if lines > _MAX_LINES:
        return None
    # Each line begins with its newline, so that a token which begins a line can't be taken for another one.
    tokens = (b"\n" + piece.removesuffix(b"\n")).replace(b"\n", b" \n").split(b" ")
    width, odd = divmod(len(tokens) - 1, lines)
    if odd or width not in (2, 3):
        return None
    keys, groups = tokens[1::width], tokens[2::width]
    fields = b",".join(groups)
    # A name keeps its `=`, for the same reason.
    flat = fields.replace(b"=", b"=,").split(b",")
    names = flat[::2]
    try:
        values = _values(flat[1::2])
        stamps = tokens[3::3] if width == 3 else None
        if len(names) == lines:
            befores, tails = _single(keys, names, cache)
            starts = _starts(stamps, cache.stamps, unit) if stamps else [[now] * lines]
        else:
            each = _written(stamps, cache.stamps, unit) if stamps else [now] * lines
            befores, tails, start = _repeated(keys, groups, names, each, cache)
            starts = [start]
    except (LineError, msgspec.DecodeError):
        return None
    if len(values) != len(befores):
        return None
    payload = join_columns([*starts, befores, values, tails])
    return (payload, len(values), lines) if len(payload) <= limit else None


def _single(keys: Column, names: Column, cache: LineCache) -> tuple[Column, Column]:
    """What stands before and behind the value of each line's one field."""
    get = cache.rows.get
    rows = [get(both) or cache.row(*both, 1) for both in zip(keys, names, strict=True)]
    return [before for (before,), _ in rows], [tail for _, tail in rows]


def _repeated(
    keys: Column, groups: Column, names: Column, starts: Column, cache: LineCache
) -> tuple[Column, Column, Column]:
    """What stands before and behind the value of each field of each line, and how its reading begins, which
    `starts` has by the line."""
    befores, tails, repeated = Column(), Column(), Column()
    first = 0
    for key, group, start in zip(keys, groups, starts, strict=True):
        count = group.count(b",") + 1
        row, tail = cache.row(key, b"".join(names[first : first + count]), count)
        befores += row
        tails += [tail] * count
        repeated += [start] * count
        first += count
    return befores, tails, repeated


def _starts(stamps: Column, of: Stamps, unit: int) -> list[Column]:
    """How the readings of these times begin, in columns."""
    if unit == 1 and are_digits(stamps):
        return of.columns(stamps)
    return [_written(stamps, of, unit)]


def _written(stamps: Column, of: Stamps, unit: int) -> Column:
    """The same in one column."""
    made = {stamp: of.written(stamp, unit) for stamp in set(stamps)}
    return [made[stamp] for stamp in stamps]


def _values(values: Column) -> Column:
    """The values as JSON."""
    text = b",".join(values)
    if b"\t" in text:
        raise LineError("a tabulator, which JSON takes for a blank")
    if b"i" in text:
        if _not_whole(text):
            raise LineError("a number that is not whole and ends in i")
        text = (text + b",").replace(b"i,", b",")[:-1]
        values = text.split(b",")
    if len(_check(b"[" + text + b"]")) != len(values):
        raise LineError("one value, which is empty")
    return values
