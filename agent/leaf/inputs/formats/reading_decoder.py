"""Decodes JSON readings exactly as `contract.parse_reading`. No I/O.

Tags take half of the time as mappings; a record for the usual tag names saves a third of the total.
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
    """A bytes value."""

    base64: Annotated[bytes, Meta(max_length=contract.MAX_BYTES)]


_Value = _Small | _Array | _Bytes
_Tags = Annotated[dict[_Name, _Text], Meta(max_length=contract.MAX_TAGS)]
_CleanName = Annotated[_Name, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z")]


class _Line(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Any reading; fields in this order decode fastest."""

    ts: _Time | UnsetType = UNSET
    device: _Name | UnsetType = UNSET
    metric: _Name
    value: _Value
    tags: _Tags | UnsetType = UNSET


class _Full(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """A reading without missing fields."""

    ts: _Time
    device: _Name
    metric: _Name
    value: _Value
    tags: _Tags | UnsetType = UNSET


class _Clean(Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Any reading, with names checked for control characters at a cost."""

    ts: _Time | UnsetType = UNSET
    device: _CleanName | UnsetType = UNSET
    metric: _CleanName
    value: _Value
    tags: Annotated[dict[_CleanName, _Text], Meta(max_length=contract.MAX_TAGS)] | UnsetType = UNSET


class _Long(_Clean):
    """A reading on a line too long for arrays or bytes, which are not built."""

    value: _Small


LARGE_LINE: Final = contract.MAX_LARGE_LINE // 2
"""Largest line in bytes with an array or bytes; jobs accept twice that, for added time, device and tags."""
LONG: Final = msgspec.json.Decoder(_Long)
CLEAN: Final = msgspec.json.Decoder(_Clean)
ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_Decoder = msgspec.json.Decoder[list[Any]]
_FULL: Final = msgspec.json.Decoder(_Full)
_FULL_LINES: Final = msgspec.json.Decoder(list[_Full | None])
_LINES: Final = msgspec.json.Decoder(list[_Line | None])
_MARK: Final = b"\n,null,"
"""Separates lines during decoding."""
_WORTH: Final = 4 * 1024
"""Bytes from which the first line's tags are examined."""
_OFTEN: Final = 8
"""Uses of tag names before a record is made, which takes half a millisecond."""
_REST: Final = 64
"""Uses that a record is skipped after a mismatch."""
_FORMS: Final = 32
"""Most cached records, of a few kilobytes."""
_MAX_NAMES: Final = 16


class ReadingDecoder:
    """Decodes lines of one reading each.

    msgspec's `decode_lines` accepts newlines inside readings. Instead a null is put after each line and the
    lines are decoded as one array; a null inside a reading is an error.
    """

    def __init__(self) -> None:
        self._came: dict[tuple[str, ...], int] = {}
        self._made: dict[tuple[str, ...], _Decoder] = {}
        self._last: _Decoder | None = None
        """The decoder of the previous lines, if made for names."""

    def decode_lines(self, text: bytes) -> tuple[list[Any], bool]:
        """Return the readings, and whether none has missing fields. The last line needs a newline.

        Raises one of `REFUSED` for an invalid line.
        """
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
    """Return the first line's tag names, () without."""
    try:
        tags = _FULL.decode(text[: text.find(b"\n")]).tags
    except REFUSED:
        return ()
    return tuple(tags) if tags is not UNSET and len(tags) <= _MAX_NAMES else ()


def _decoder(names: tuple[str, ...]) -> _Decoder:
    """Return a decoder for exactly these tag names."""
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
