"""Giving a line tags. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agent.contract import MAX_TAGS

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


def with_tags(line: bytes, tags: Sequence[tuple[str, str]]) -> bytes:
    """The line, a valid reading, with these tags. A tag that it has already stays as it is, and none is added
    to the `MAX_TAGS` that a reading may have; all values stay as they were written."""
    one = _LINE.decode(line)
    own = _TAGS.decode(one.tags)
    added = [pair for pair in tags if pair[0] not in own][: MAX_TAGS - len(own)]
    if not added:
        return line
    pairs = [(_text(name), _text(value)) for name, value in added]
    pairs += [(_text(name), bytes(value)) for name, value in own.items()]
    return b'{"ts":%b,"device":%b,"metric":%b,"value":%b,"tags":{%b}}' % (
        bytes(one.ts),
        bytes(one.device),
        bytes(one.metric),
        bytes(one.value),
        b",".join(name + b":" + value for name, value in pairs),
    )


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
