"""Defines the decoded forms of batch lines and direct messages. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from agent.contract import (
    EPOCH_LIMIT,
    MAX_ARRAY,
    MAX_BYTES,
    MAX_EXACT,
    MAX_INT,
    MAX_NAME,
    MAX_TAGS,
    MAX_TEXT,
    Value,
)

FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a msgspec decoder for bad input."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Whole = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
_Time = (
    Annotated[datetime, Meta(tz=True)]
    | Annotated[float, Meta(ge=0, le=EPOCH_LIMIT)]
    | Annotated[int, Meta(ge=0, le=EPOCH_LIMIT)]
)
Tags = Annotated[dict[Name, Text], Meta(max_length=MAX_TAGS)]

_CleanName = Annotated[Name, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]

Array = Annotated[
    list[float | Annotated[int, Meta(ge=-MAX_EXACT, le=MAX_EXACT)]], Meta(min_length=1, max_length=MAX_ARRAY)
]


class Bytes(Struct, gc=False, forbid_unknown_fields=True):
    """A bytes value."""

    base64: Annotated[bytes, Meta(max_length=MAX_BYTES)]


_Large = Array | Bytes
LineValue = float | int | str | bool | list[float | int] | Bytes

NO_TAGS: Final = Raw(b"")
"""Default of a line without tags; a line may also contain `{}`."""


class ReadingLine(Struct, gc=False, forbid_unknown_fields=True):
    """A reading in a line; `ts`, `tags` and sizes are unchecked."""

    metric: str
    value: float | int | str | bool | _Large
    ts: str | float | int | UnsetType = UNSET
    device: str | UnsetType = UNSET
    tags: Raw = NO_TAGS


class CheckedLine(Struct, gc=False, forbid_unknown_fields=True):
    """A fully checked reading, at half as much cost again."""

    metric: _CleanName
    value: float | Whole | Text | bool | _Large
    ts: _Time | UnsetType = UNSET
    device: _CleanName | UnsetType = UNSET
    tags: Annotated[dict[_CleanName, Text], Meta(max_length=MAX_TAGS)] | UnsetType = UNSET


class DirectObject(Struct, gc=False, forbid_unknown_fields=True):
    """A direct message with an object; device and metric are optional, since the subject has them."""

    value: float | Whole | Text | bool | _Large
    metric: Name | UnsetType = UNSET
    ts: str | float | int | UnsetType = UNSET
    device: Name | UnsetType = UNSET
    tags: Raw = NO_TAGS


class SmallLine(Struct, gc=False):
    """A value other than array or bytes."""

    value: float | int | str | bool


def line_value(value: Value) -> LineValue:
    """Convert a value of the reference decoder to a line's form."""
    if isinstance(value, bytes):
        return Bytes(value)
    return list(value) if isinstance(value, tuple) else value
