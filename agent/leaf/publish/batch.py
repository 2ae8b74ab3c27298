"""Makes the message of a batch (joins, compresses, numbers) and reads how the stream answers it. No I/O.

An answer is a PubAck, or an error that says whether the same batch can ever be stored. A PubAck `duplicate:
true` names the message that a stream holds under an id, not whose it is: everybody who may publish to the
stream may use any id, and an agent's next one can be guessed. The subjects of the agent are its own, so they
decide."""

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
"""The message of a class's stream at a sequence, None where none is. Raises `JetStreamError`."""

TAKEN = "message_id_taken"
"""Why a number is refused under which the stream holds a foreign message. Its batch is stored under a later
number."""

_FULL: Final = frozenset({10002, 10023, 10047, 10077})
"""Limits of account, server, storage or stream (server/errors.json of nats-server). 10077 is also how a store
that cannot write answers; either way there is no room for this batch now."""

_TOO_LARGE: Final = frozenset({10054, 10097})
"""Message or headers (64 KiB) above the limit."""

NO_STREAM: Final = "no stream takes this subject"

_LEVEL: Final = 1
"""Readings are long matches with short differences: levels 2 to 4 find shorter matches, which cost more CPU
and more bytes."""
_READINGS: Final = {"hash_log": 11, "min_match": 6}
"""What level 1 is changed to for readings. Each line is like the one before it, so 2,048 places are enough to
find the match, and all of them stay in the cache: a sixth less CPU, and some per cent fewer bytes. Free text
needs the level's own table, or its batches are larger by a sixth."""
_TEXT_SHARE: Final = 5
"""A batch above this part of its bytes is free text: readings pack to less."""

Entries = list[PendingChunk[Settlement]]


def count_readings(entries: Entries) -> int:
    """How many readings these chunks hold."""
    return sum(entry.chunk.count for entry in entries)


def promised_readings(entries: Entries) -> int:
    """How many readings of these were acknowledged as accepted."""
    return sum(entry.chunk.count for entry in entries if entry.promised)


class Packer:
    """Packs chunks into the payload and headers of one message. How the last batch of an input packed says
    how the next one is compressed."""

    def __init__(self) -> None:
        self._readings = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(_LEVEL, **_READINGS)
        )
        self._text = zstandard.ZstdCompressor(level=_LEVEL)
        self._of_text: set[str] = set()
        """The inputs whose last batch was free text."""

    def pack(self, entries: Entries, input_name: str) -> tuple[bytes, bool]:
        """The payload, and whether it is compressed: zstd, left out where it saves nothing."""
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
    return len(payload) + keys + len(entries[-1].chunk.position or "") + HEADER_BYTES


class Batch(Struct):
    """A batch with a number; `serial` names it in reply subjects. `floor` is a sequence of the stream up to
    which this batch is not stored. `unanswered` counts the attempts over this connection whose answer is
    still to come, `refused_at` is when one was answered by an error that may pass, `claimed` is where an
    answer said that the stream holds it already; `carried` says that an earlier connection had sent it,
    `store_lost` that the store to which it was sent was lost since, so that the hub may have it. Times are
    monotonic seconds."""

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
        """Where a pull input goes on after this batch."""
        return self.headers.get(H_POSITION)


class Numbering:
    """Gives batches of a run their numbers, which the ledgers count."""

    def __init__(self, domain: str, run: str, ledgers: Mapping[str, ClassLedger], packer: Packer) -> None:
        self._domain, self._run, self._ledgers, self._packer = domain, run, ledgers, packer
        self._serial = itertools.count(1)

    def batch(
        self, sealed: SealedBatch, entries: Entries, packed: tuple[bytes, bool], *, floor: int, now: float
    ) -> Batch:
        """The batch of these entries of a draft, which `packed` holds."""
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
        """The same batch under the next number; its readings count as accepted already."""
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
    """The batch is at `seq`; `duplicate` when an earlier attempt had stored it."""

    seq: int
    duplicate: bool


class NotStored(Struct, frozen=True):
    """This attempt stored nothing. `reason` is set when trying again soon would be refused again."""

    text: str
    reason: RefusalReason | None


PublishAnswer = StoredAck | NotStored


def parse_ack(data: bytes) -> PublishAnswer:
    """Read one answer. An empty one is the server's "no responders": no stream listens."""
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
    """Whether the message that was named as a duplicate of a batch is that batch. `message` is None where the
    stream does not hold it any more. Then it can only be the batch if an earlier connection had sent that,
    for over this one every attempt was answered, and none as stored; it is taken to be, for a batch that is
    called stored and does not arrive is named by the audit, and one that is stored twice is not."""
    if message is None:
        return batch.carried
    return (
        message.subject == batch.subject
        and message.headers.get(H_MESSAGE_ID) == str(batch.id)
        and message.data == batch.payload
    )
