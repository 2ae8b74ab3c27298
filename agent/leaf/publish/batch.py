"""Builds a batch's message and interprets the stream's answer. No I/O.

PubAck `duplicate: true` names a message under the id, which anyone may have published; only the agent
publishes on its subjects, so they decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import zstandard
from msgspec import Struct
from msgspec.structs import replace

from agent import contract
from agent.contract import H_MESSAGE_ID, H_POSITION, REQUEST_BYTES, BatchHeaders, MessageId
from agent.jetstream import RawMessage
from agent.leaf.intake import RefusalReason
from agent.leaf.ledger import ClassLedger
from agent.leaf.publish.accumulator import PendingChunk
from agent.leaf.publish.limits import HEADER_BYTES
from agent.leaf.publish.send_queue import SealedBatch
from agent.leaf.publish.settlement import Settlement

Look = Callable[[str, int], Awaitable[RawMessage | None]]
"""Returns a class's message at a sequence, or None. Raises `JetStreamError`."""

TAKEN = "message_id_taken"
"""The reason for renumbering a batch whose id a foreign message has."""

_FULL: Final = frozenset({10002, 10023, 10047, 10077})
"""Limits of account, server, storage or stream (server/errors.json). 10077 also means an unwritable store."""

_TOO_LARGE: Final = frozenset({10054, 10097})
"""Message or headers (64 KiB) above the limit."""

NO_STREAM: Final = "no stream takes this subject"

_LEVEL: Final = 1
"""Readings compress best at level 1; levels 2 to 4 need more CPU and bytes."""
_READINGS: Final = {"hash_log": 11, "min_match": 6}
"""Level 1 for readings with 2,048 places, which stay in the CPU cache: a sixth less CPU, some per cent
smaller. Free text would grow by a sixth.
"""
_TEXT_SHARE: Final = 5
"""A batch that packs to more than this part (a fifth) of its bytes counts as free text."""

Entries = list[PendingChunk[Settlement]]


def count_readings(entries: Entries) -> int:
    return sum(entry.chunk.count for entry in entries)


def promised_readings(entries: Entries) -> int:
    """Count readings acknowledged as accepted."""
    return sum(entry.chunk.count for entry in entries if entry.promised)


class Packer:
    """Packs chunks into payload and headers; an input's last batch selects the compression of the next."""

    def __init__(self) -> None:
        self._readings = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(_LEVEL, **_READINGS)
        )
        self._text = zstandard.ZstdCompressor(level=_LEVEL)
        self._of_text: set[str] = set()
        """Inputs whose last batch was free text."""

    def pack(self, entries: Entries, input_name: str) -> tuple[bytes, bool]:
        """Return the payload and whether it is zstd, which is omitted when it saves nothing."""
        raw = b"".join(entry.chunk.payload for entry in entries)
        is_text = input_name in self._of_text
        packed = (self._text if is_text else self._readings).compress(raw)
        if _TEXT_SHARE * len(packed) <= len(raw):
            self._of_text.discard(input_name)
        elif not is_text:
            self._of_text.add(input_name)
            # The server takes a message up to a size, and it may be just what this one is above.
            packed = min(packed, self._text.compress(raw), key=len)
        return (packed, True) if len(packed) < len(raw) else (raw, False)

    def headers(
        self, sealed: SealedBatch, entries: Entries, ident: MessageId, compressed: bool
    ) -> dict[str, str]:
        """Return a batch's headers."""
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
    """Return an upper bound of payload and headers in bytes, as the server counts."""
    keys = sum(
        len(entry.chunk.request.key) + REQUEST_BYTES for entry in entries if entry.chunk.request is not None
    )
    return len(payload) + keys + len(entries[-1].chunk.position or "") + HEADER_BYTES


class Batch(Struct):
    """A numbered batch. Times are monotonic seconds.

    `serial` is in reply subjects; up to `floor` the batch is not in the stream. `unanswered` counts open
    attempts of this connection; `refused_at` is the last temporary error; `claimed` is a duplicate's
    sequence. `carried`: an earlier connection sent it; `store_lost`: its store was lost since, so the hub may
    have it.
    """

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
    claimed: int | None = None
    carried: bool = False
    store_lost: bool = False

    @property
    def position(self) -> str | None:
        """The pull input's position after this batch."""
        return self.headers.get(H_POSITION)


class Numbering:
    """Numbers a run's batches, as counted in the ledgers."""

    def __init__(self, domain: str, run: str, ledgers: Mapping[str, ClassLedger], packer: Packer) -> None:
        self._domain, self._run, self._ledgers, self._packer = domain, run, ledgers, packer
        self._serial = itertools.count(1)

    def batch(
        self, sealed: SealedBatch, entries: Entries, packed: tuple[bytes, bool], *, floor: int, now: float
    ) -> Batch:
        """Return the batch of a draft's entries."""
        draft, (payload, compressed) = sealed.draft, packed
        readings, early = count_readings(entries), promised_readings(entries)
        ident = MessageId(self._run, draft.cls, self._ledgers[draft.cls].number(readings - early))
        subject = contract.dead_subject if draft.dead else contract.batch_subject
        return Batch(
            serial=next(self._serial),
            id=ident,
            subject=subject(self._domain, draft.cls, draft.input),
            headers=self._packer.headers(sealed, entries, ident, compressed),
            payload=payload,
            entries=entries,
            input=draft.input,
            dead=draft.dead,
            readings=readings,
            raw_bytes=sum(len(entry.chunk.payload) for entry in entries),
            floor=floor,
            sealed=sealed.at,
            first_sent=now,
            last_sent=now,
        )

    def again(self, batch: Batch, *, floor: int, now: float) -> Batch:
        """Renumber a batch; its readings already count as accepted."""
        ident = MessageId(self._run, batch.id.cls, self._ledgers[batch.id.cls].number(0))
        return replace(
            batch,
            serial=next(self._serial),
            id=ident,
            headers={**batch.headers, H_MESSAGE_ID: str(ident)},
            floor=floor,
            first_sent=now,
            last_sent=now,
            unanswered=0,
            refused_at=None,
            claimed=None,
            carried=False,
        )


class _PublishError(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PubAck(Struct):
    seq: int = 0
    duplicate: bool = False
    error: _PublishError | None = None


_decode = msgspec.json.Decoder(_PubAck).decode


class StoredAck(Struct, frozen=True):
    """The batch is at `seq`; `duplicate` if stored by an earlier attempt."""

    seq: int
    duplicate: bool


class NotStored(Struct, frozen=True):
    """This attempt stored nothing. `reason` is set if a retry would be refused."""

    text: str
    reason: RefusalReason | None


PublishAnswer = StoredAck | NotStored


def parse_ack(data: bytes) -> PublishAnswer:
    """Parse an answer. An empty one means no responders: no stream listens."""
    if not data:
        return NotStored(NO_STREAM, None)
    try:
        ack = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return NotStored(f"the answer is no PubAck: {data[:80]!r}", None)
    if ack.error is None and ack.seq > 0:
        return StoredAck(ack.seq, ack.duplicate)
    error = ack.error or _PublishError(description="a PubAck without a sequence")
    text = f"{error.description} (error {error.err_code})"
    if error.err_code in _FULL:
        return NotStored(text, RefusalReason.FULL)
    return NotStored(text, RefusalReason.TOO_LARGE if error.err_code in _TOO_LARGE else None)


def is_own(batch: Batch, message: RawMessage | None) -> bool:
    """Tell whether a duplicate's message is this batch.

    `message` is None if it is gone. Then it is the batch only if an earlier connection sent it. Assuming so
    is safe: the audit reports a missing batch but not a doubled one.
    """
    if message is None:
        return batch.carried
    return (
        message.subject == batch.subject
        and message.headers.get(H_MESSAGE_ID) == str(batch.id)
        and message.data == batch.payload
    )
