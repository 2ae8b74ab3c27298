"""Reading the answers of a stream to a publish: pure. An answer is a PubAck, or an error that says whether
the same batch can ever be stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from agent.leaf.intake import RefusalReason

_FULL: Final = frozenset({10002, 10023, 10047, 10077})
"""Limits of account, server, storage or stream (server/errors.json of nats-server). 10077 is also how a store
that cannot write answers; either way there is no room for this batch now."""
_TOO_LARGE: Final = frozenset({10054, 10097})
"""Message or headers (64 KiB) above the limit."""
NO_STREAM: Final = "no stream takes this subject"


class _Error(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PubAck(Struct):
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


_decode = msgspec.json.Decoder(_PubAck).decode


@dataclass(frozen=True, slots=True)
class StoredAck:
    """The batch is at `seq`; `duplicate` when an earlier attempt had stored it."""

    seq: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class NotStored:
    """This attempt stored nothing. `reason` is set when trying again soon would be refused again."""

    text: str
    reason: RefusalReason | None


Answer = StoredAck | NotStored


def parse(data: bytes) -> Answer:
    """Read one answer. An empty one is the server's "no responders": no stream listens."""
    if not data:
        return NotStored(NO_STREAM, None)
    try:
        ack = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return NotStored(f"the answer is no PubAck: {data[:80]!r}", None)
    if ack.error is None and ack.seq > 0:
        return StoredAck(ack.seq, ack.duplicate)
    error = ack.error or _Error(description="a PubAck without a sequence")
    text = f"{error.description} (error {error.err_code})"
    if error.err_code in _FULL:
        return NotStored(text, RefusalReason.FULL)
    return NotStored(text, RefusalReason.TOO_LARGE if error.err_code in _TOO_LARGE else None)
