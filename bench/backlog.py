"""A stream at the hub that holds so many bytes of readings, made within a minute or two: readings whose value
is a text of noise, so that few of them are many bytes. Each batch has a number and headers of its own; the
contents of some come again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.contract import DEFAULT_CLASS, batch_subject
from bench import lake as lakes
from bench.hub_stream import Hub, Message, fill_from_leaf, messages_of

STREAM: Final = "TELEMETRY_0"
_BATCH: Final = 1_000
_CHARACTERS: Final = 256
"""Of a reading: as a line of a log."""
_READING_BYTES: Final = 198.0
"""As the stream holds it, compressed."""
_CONTENTS: Final = 64
"""More than a file's compression looks back."""


def fill_backlog(hub: Hub, gigabytes: float) -> lakes.Shape:
    """Make the stream; what it holds."""
    readings = round(gigabytes * 1e9 / _READING_BYTES)
    shape = lakes.Shape(readings, _BATCH, domains=1, text=_CHARACTERS)
    fill_from_leaf(hub, STREAM, shape.domain(0), _messages(shape))
    return shape


def _messages(shape: lakes.Shape) -> Iterator[Message]:
    subject = batch_subject(shape.domain(0), DEFAULT_CLASS, "http")
    contents = [lakes.payload(shape, number) for number in range(min(_CONTENTS, shape.batches))]
    for number in range(shape.batches):
        whole = shape.count(number) == _BATCH
        content = contents[number % _CONTENTS] if whole else lakes.payload(shape, number)
        yield subject, lakes.headers(shape, number), content
    yield from messages_of(lakes.ledgers(shape))
