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
LONG: Final = msgspec.json.Decoder(_Long)
CLEAN: Final = msgspec.json.Decoder(_Clean)
ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_Decoder = msgspec.json.Decoder[list[Any]]
_FULL: Final = msgspec.json.Decoder(_Full)
_FULL_LINES: Final = msgspec.json.Decoder(list[_Full | None])
_LINES: Final = msgspec.json.Decoder(list[_Line | None])
_MARK: Final = b"\n,null,"
"""Stands behind each line while they are decoded."""
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
    """Decodes lines, each of which has to be a reading.

    msgspec's `decode_lines` takes any blank for the end of a line, and a newline inside of a reading. So a
    null is put behind each line, and all of them are decoded as one array, which another null ends. Inside of
    a reading it is an error: no text may hold a newline, and nothing else a null between commas. Where each
    line is one element, and none of these is a null, each is a reading."""

    def __init__(self) -> None:
        self._came: dict[tuple[str, ...], int] = {}
        self._made: dict[tuple[str, ...], _Decoder] = {}
        self._last: _Decoder | None = None
        """What took the lines before these, if that was made for names; others mostly fail in its first."""

    def decode_lines(self, text: bytes) -> tuple[list[Any], bool]:
        """The readings of NDJSON, and whether nothing is to be filled in. The last line ends with a newline,
        too. Raises one of `REFUSED` where a line is no reading."""
        marked = b"".join((b"[", text.replace(b"\n", _MARK), b"null]"))
        try:
            elements, full = self._full(text, marked), True
        except REFUSED:
            elements, full = _LINES.decode(marked), False
        readings = elements[:-1:2]
        marks = (len(marked) - len(text) - len(b"[null]")) // (len(_MARK) - 1)
        if len(elements) != 2 * marks + 1 or not all(readings):
            raise msgspec.ValidationError("there is not one reading a line")
        return readings, full

    def _full(self, text: bytes, marked: bytes) -> list[Any]:
        if (last := self._last) is not None:  # looked at once: a file is decoded in a thread
            try:
                return last.decode(marked)
            except REFUSED:
                self._last = None
        if len(text) >= _WORTH and (names := _names(text)):
            came = self._came[names] = self._came.get(names, 0) + 1
            if came > _OFTEN:
                decoder = self._of(names)
                try:
                    elements = decoder.decode(marked)
                except REFUSED:
                    self._came[names] = _OFTEN - _REST
                else:
                    self._last = decoder
                    return elements
            elif len(self._came) > _FORMS:
                self._came.clear()
                self._made.clear()
        return _FULL_LINES.decode(marked)

    def _of(self, names: tuple[str, ...]) -> _Decoder:
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


def _decoder(names: tuple[str, ...]) -> _Decoder:
    """Decodes readings whose tags have no other names."""
    tags = msgspec.defstruct(
        "_NamedTags",
        [(f"tag{number}", _Text | UnsetType, UNSET) for number in range(len(names))],
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
    return msgspec.json.Decoder(list[reading | None])  # type: ignore[valid-type]
