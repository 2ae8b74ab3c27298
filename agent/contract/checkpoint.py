"""Positions: on which leaf and hub agreed, up to which ingest has committed, and up to which the hub holds
every message; and the exchange that an announcement or answer repeats.

For the last one a leaf whose senders wait for the hub sends a cursor request, more often than it announces
itself. The answer names a message of each class; the leaf relies on it if its own message there has the same
id.

Announcements and answers that say nothing new are short. The hub gives every full answer the name of its
exchange. A leaf whose next announcement would be the same but for the clock sends that name instead, and so
does a hub whose answer would be the same. Both sides keep the newest exchange in memory only. A hub that does
not know the name has the leaf announce in full.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from agent.contract.checks import (
    MAX_INT,
    VERSION,
    ContractError,
    check_class,
    check_epoch,
    check_machine,
    check_run,
    count_of,
    encoded,
    field_of,
    matching,
    nullable,
    open_record,
)
from agent.contract.lake import check_lake

__all__ = [
    "Checkpoint",
    "Committed",
    "CursorAnswer",
    "CursorRequest",
    "Repeat",
    "new_exchange",
    "parse_committed",
    "parse_cursor_answer",
    "parse_cursor_request",
    "parse_repeat",
    "parse_synced",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A message on which leaf and hub agreed: the leaf's sequence, the id of the message there, and where the
    hub holds that message."""

    leaf_seq: int
    message_id: str
    hub_stream: str
    hub_seq: int


def parse_checkpoint(value: Any) -> Checkpoint:
    """Read a checkpoint, a list of four; raises `ContractError`."""
    match value:
        case [int() as leaf_seq, str() as message_id, str() as stream, int() as hub_seq] if (
            is_sequence(leaf_seq) and is_sequence(hub_seq) and message_id
        ):
            return Checkpoint(leaf_seq, message_id, stream, hub_seq)
    raise ContractError(f"checkpoint {value!r:.160} is not [leaf seq, message id, hub stream, hub seq]")


def is_sequence(value: int) -> bool:
    """Whether a number may be a sequence of a stream, whose first is 1."""
    return not isinstance(value, bool) and 1 <= value <= MAX_INT


def checkpoint_row(checkpoint: Checkpoint) -> list[int | str]:
    """A checkpoint as a row of a record."""
    return [checkpoint.leaf_seq, checkpoint.message_id, checkpoint.hub_stream, checkpoint.hub_seq]


@dataclass(frozen=True, slots=True)
class Committed:
    """What `ingest` has committed of an aggregate: all up to `seq` of the stream made at `created`. With
    `seq` 0 it asks up to where that stream is on the hub's disk (`parse_synced`)."""

    stream: str
    created: str
    seq: int
    arrived: int = 0
    """When the hub took the message at `seq`, in microseconds since 1970; 0 where that is not known."""
    lake: str = ""
    """The id of the lake that holds it (`agent.contract.lake`); empty in a question."""
    place: str = ""
    """Where that lake is, for people."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_committed(data: bytes | str) -> Committed:
    """Read a committed record; raises `ContractError`."""
    row = open_record(data, "committed")
    seq = count_of(row, "seq", "committed")
    return Committed(
        field_of(row, "stream", str, "committed"),
        field_of(row, "created", str, "committed"),
        seq,
        count_of(row, "arrived", "committed", absent=0),
        check_lake(row.get("lake")) if seq else "",
        nullable(row, "place", str, "committed") or "",
    )


def parse_synced(data: bytes | str, created: str) -> int:
    """Up to which sequence the stream made at `created` is on the hub's disk, from the answer to a
    `Committed` that asks for it; raises `ContractError`."""
    row = open_record(data, "synced")
    if "refused" in row:
        raise ContractError(f"synced: {field_of(row, 'refused', str, 'synced')}")
    if field_of(row, "created", str, "synced") != created:
        raise ContractError(f"synced: the stream was made at {row['created']}, not at {created}")
    return count_of(row, "synced", "synced")


@dataclass(frozen=True, slots=True)
class CursorRequest:
    """Who asks, and the epoch of each class that it asks about."""

    machine: str
    run: str
    epochs: Mapping[str, str]

    def encode(self) -> bytes:
        return encoded({"machine": self.machine, "run": self.run, "epochs": dict(self.epochs)})


@dataclass(frozen=True, slots=True)
class CursorAnswer:
    """The newest message of each class that the hub holds with all before it; a class is left out if that is
    unknown now. `refused` is a sentence why nothing is answered."""

    held: Mapping[str, Checkpoint] = field(default_factory=dict)
    refused: str | None = None

    def encode(self) -> bytes:
        held = {cls: checkpoint_row(checkpoint) for cls, checkpoint in self.held.items()}
        return encoded({"held": held, "refused": self.refused})


def parse_cursor_request(data: bytes | str) -> CursorRequest:
    """Read a question; raises `ContractError`."""
    row = open_record(data, "cursor")
    epochs = field_of(row, "epochs", dict, "cursor")
    if not all(isinstance(epoch, str) for epoch in epochs.values()):
        raise ContractError("cursor: epochs must map classes to epochs")
    return CursorRequest(
        check_machine(row.get("machine")),
        check_run(row.get("run")),
        {check_class(cls): check_epoch(epoch) for cls, epoch in epochs.items()},
    )


def parse_cursor_answer(data: bytes | str) -> CursorAnswer:
    """Read an answer; raises `ContractError`."""
    row = open_record(data, "cursor answer")
    held = field_of(row, "held", dict, "cursor answer")
    return CursorAnswer(
        {check_class(cls): parse_checkpoint(value) for cls, value in held.items()},
        nullable(row, "refused", str, "cursor answer"),
    )


_EXCHANGE = re.compile(r"[0-9a-f]{12}\Z")
MAX_REPEAT: Final = 64
"""Bytes; every announcement and answer in full is longer."""


def new_exchange() -> str:
    """A name for an exchange, which no other one of a leaf has."""
    return secrets.token_hex(6)


def check_exchange(value: Any) -> str:
    """The value if it names an exchange; raises `ContractError`."""
    return matching(_EXCHANGE, value, "exchange", "12 digits of a hexadecimal number")


@dataclass(frozen=True, slots=True)
class Repeat:
    """An announcement or an answer that is the same as in an earlier exchange."""

    exchange: str

    def encode(self) -> bytes:
        return f'{{"v":{VERSION},"same":"{self.exchange}"}}'.encode()


def parse_repeat(data: bytes) -> Repeat | None:
    """Read a repeat, None if the record is one in full; raises `ContractError`."""
    if len(data) > MAX_REPEAT:
        return None
    row = open_record(data, "repeat")
    return Repeat(check_exchange(row["same"])) if "same" in row else None
