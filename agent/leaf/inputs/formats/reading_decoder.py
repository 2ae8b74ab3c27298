"""Decoders of readings in JSON that take exactly what `contract.parse_reading` takes. No I/O.

Half the time of decoding goes into tags, as long as each line makes a mapping of them. Nearly all lines of a
sender have tags of the same names, and a record with these names takes a third less in all.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agent import contract

_Name = Annotated[str, Meta(min_length=1, max_length=contract.MAX_NAME)]
_Text = Annotated[str, Meta(max_length=contract.MAX_TEXT)]
_Int = Annotated[int, Meta(ge=-contract.MAX_INT - 1, le=contract.MAX_INT)]
_Time = (
    Annotated[datetime, Meta(tz=True)]
    | Annotated[int, Meta(ge=0, le=contract.EPOCH_LIMIT)]
    | Annotated[float, Meta(ge=0, le=contract.EPOCH_LIMIT)]
)
_Small = float | _Int | _Text | bool
_Exact = Annotated[int, Meta(ge=-contract.MAX_EXACT, le=contract.MAX_EXACT)]
_Array = Annotated[list[float | _Exact], Meta(min_length=1, max_length=contract.MAX_ARRAY)]


class _Bytes(Struct, gc=False, forbid_unknown_fields=True):
    """A value that is bytes."""

    base64: Annotated[bytes, Meta(max_length=contract.MAX_BYTES)]


_Value = _Small | _Array | _Bytes
_Tags = Annotated[dict[_Name, _Text], Meta(max_length=contract.MAX_TAGS)]
_CleanName = Annotated[_Name, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]


class _Line(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Any reading; fields found in this order are found fastest."""

    ts: _Time | UnsetType = UNSET
    device: _Name | UnsetType = UNSET
    metric: _Name
    value: _Value
    tags: _Tags | UnsetType = UNSET


class _Full(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A reading with nothing to fill in."""

    ts: _Time
    device: _Name
    metric: _Name
    value: _Value
    tags: _Tags | UnsetType = UNSET


class _Clean(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Any reading, its names looked at for control characters, which costs more."""

    ts: _Time | UnsetType = UNSET
    device: _CleanName | UnsetType = UNSET
    metric: _CleanName
    value: _Value
    tags: Annotated[dict[_CleanName, _Text], Meta(max_length=contract.MAX_TAGS)] | UnsetType = UNSET


class _Long(_Clean):
    """A reading of a line that is too long for an array or bytes, of which none is built."""

    value: _Small


LARGE_LINE: Final = contract.MAX_LARGE_LINE // 2
"""Bytes of a line above which an array or bytes is refused. The jobs take twice as many: time, device and the
tags of a rule come on top."""
LINE: Final = msgspec.json.Decoder(_Line)
LONG: Final = msgspec.json.Decoder(_Long)
CLEAN: Final = msgspec.json.Decoder(_Clean)
ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FULL: Final = msgspec.json.Decoder(_Full)
_WORTH: Final = 4 * 1024
"""Bytes of lines from which on a look at the first of them pays."""
_OFTEN: Final = 8
"""Times that names of tags have to come before a record is made for them, which takes half a millisecond."""
_REST: Final = 64
"""Times that a record is not used after lines did not fit it."""
_FORMS: Final = 32
"""Records that are kept, of a few kilobytes each."""
_MAX_NAMES: Final = 16


class ReadingDecoder:
    """Decodes readings with `ts` and `device`."""

    def __init__(self) -> None:
        self._came: dict[tuple[str, ...], int] = {}
        self._made: dict[tuple[str, ...], msgspec.json.Decoder[Any]] = {}

    def decode_lines(self, text: bytes) -> list[Any]:
        """The readings of NDJSON; raises one of `REFUSED` where a line is none."""
        if len(text) >= _WORTH and (names := _names(text)):
            came = self._came[names] = self._came.get(names, 0) + 1
            if came > _OFTEN:
                try:
                    return self._of(names).decode_lines(text)
                except REFUSED:
                    self._came[names] = _OFTEN - _REST
            elif len(self._came) > _FORMS:
                self._came.clear()
                self._made.clear()
        return _FULL.decode_lines(text)

    def _of(self, names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
        made = self._made.get(names)
        if made is None:
            made = self._made[names] = _decoder(names)
        return made


def _names(text: bytes) -> tuple[str, ...]:
    """The names of the tags of the first line; empty where it has none or is not a reading."""
    try:
        tags = _FULL.decode(text[: text.find(b"\n")]).tags
    except REFUSED:
        return ()
    return tuple(tags) if tags is not UNSET and len(tags) <= _MAX_NAMES else ()


def _decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Decodes readings whose tags have no other names."""
    fields: list[Any] = [(f"tag{number}", _Text | UnsetType, UNSET) for number in range(len(names))]
    tags = msgspec.defstruct(
        "_NamedTags",
        fields,
        rename={f"tag{number}": name for number, name in enumerate(names)},
        gc=False,
        forbid_unknown_fields=True,
    )
    reading = msgspec.defstruct(
        "_NamedFull",
        [
            ("ts", _Time),
            ("device", _Name),
            ("metric", _Name),
            ("value", _Value),
            ("tags", tags | UnsetType, UNSET),
        ],
        gc=False,
        forbid_unknown_fields=True,
    )
    return msgspec.json.Decoder(reading)
