"""Making the message of a batch: joining, compressing, naming. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

from agent.accumulator import Draft, Entry
from agent.contract import H_POSITION, REQUEST_BYTES, BatchHeaders, Clock, MessageId
from agent.requests import Settled

_LEVEL = 3
_HEADER_BYTES = 1024
"""Room for the headers whose size does not depend on the chunks."""

Entries = list[Entry[Settled]]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A draft that takes no more chunks, and when it was sealed: `wall` in ns since 1970, `clock` as it was
    then, `at` in the event loop's seconds."""

    draft: Draft[Settled]
    wall: int
    clock: Clock
    at: float


def count_readings(entries: Entries) -> int:
    """How many readings these chunks hold."""
    return sum(entry.chunk.count for entry in entries)


class Packer:
    """Packs chunks into the payload and headers of one message."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)

    def pack(self, entries: Entries) -> tuple[bytes, bool]:
        """The payload, and whether it is compressed: zstd at level 3, left out where it saves nothing."""
        raw = b"".join(entry.chunk.payload for entry in entries)
        packed = self._zstd.compress(raw)
        return (packed, True) if len(packed) < len(raw) else (raw, False)

    def headers(self, sealed: Sealed, entries: Entries, ident: MessageId, compressed: bool) -> dict[str, str]:
        """The headers of the batch of these entries of a draft."""
        return BatchHeaders(
            id=ident,
            count=count_readings(entries),
            sealed_at=sealed.wall,
            clock=sealed.clock,
            compressed=compressed,
            requests=tuple(entry.chunk.request for entry in entries if entry.chunk.request is not None),
            position=entries[-1].chunk.position,
        ).encode()


def message_bytes(payload: bytes, entries: Entries) -> int:
    """An upper bound on the size of the message in bytes, payload and headers, as the server's limit counts
    it."""
    keys = sum(
        len(entry.chunk.request.key) + REQUEST_BYTES for entry in entries if entry.chunk.request is not None
    )
    return len(payload) + keys + len(entries[-1].chunk.position or "") + _HEADER_BYTES


@dataclass(slots=True)
class Batch:
    """A batch with a number; `serial` names it in reply subjects. `floor` is a sequence of the stream up to
    which this batch is not stored. `unanswered` counts the attempts over this connection whose answer is
    still to come, `refused_at` is when one was answered by an error that may pass; times are monotonic
    seconds."""

    serial: int
    id: MessageId
    subject: str
    headers: dict[str, str]
    payload: bytes
    entries: Entries
    input: str
    dead: bool
    readings: int
    raw_bytes: int
    floor: int
    sealed: float
    first_sent: float
    last_sent: float
    unanswered: int = 0
    refused_at: float | None = None

    @property
    def position(self) -> str | None:
        """Where a pull input goes on after this batch."""
        return self.headers.get(H_POSITION)
