"""Giving a line tags. Pure."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agent.contract import MAX_TAGS

_TAGS_KNOWN: Final = 256
_NO_TAGS: Final = Raw(b"{}")


class _Line(Struct, gc=False):
    """A reading with its values as they stand in the line."""

    ts: Raw
    device: Raw
    metric: Raw
    value: Raw
    tags: Raw = _NO_TAGS


_LINE: Final = msgspec.json.Decoder(_Line)
_TAGS: Final = msgspec.json.Decoder(dict[str, Raw])


def with_tags(line: bytes, tags: tuple[tuple[str, str], ...]) -> bytes:
    """The line, a valid reading, with these tags. A tag that it has already stays as it is, and none is added
    to the `MAX_TAGS` that a reading may have; all values stay as they were written."""
    one = _LINE.decode(line)
    added = _added(bytes(one.tags), tags)
    if not added:
        return line
    own = bytes(one.tags)[1:].lstrip()
    return b'{"ts":%b,"device":%b,"metric":%b,"value":%b,"tags":{%b%b%b}' % (
        bytes(one.ts),
        bytes(one.device),
        bytes(one.metric),
        bytes(one.value),
        b",".join(added),
        b"" if own == b"}" else b",",
        own,
    )


def _added(own: bytes, tags: tuple[tuple[str, str], ...]) -> list[bytes]:
    """Those of the tags, as members of an object, that are added to tags which stand there as `own`."""
    encoded = _encoded(tags)
    # Without an escape a tag has four quotation marks, and its name can be written in one way only.
    fits = b"\\" not in own and own.count(b'"') // 4 + len(tags) <= MAX_TAGS
    if fits and not any(name in own for name, _ in encoded):
        return [member for _, member in encoded]
    known = _TAGS.decode(own)
    room = MAX_TAGS - len(known)
    return [member for (name, _), (_, member) in zip(tags, encoded, strict=True) if name not in known][:room]


@lru_cache(_TAGS_KNOWN)
def _encoded(tags: tuple[tuple[str, str], ...]) -> list[tuple[bytes, bytes]]:
    """Each tag's name and the whole tag, as JSON."""
    return [(_text(name), _text(name) + b":" + _text(value)) for name, value in tags]


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
