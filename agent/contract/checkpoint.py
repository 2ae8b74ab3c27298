"""Defines positions agreed by leaf and hub, committed by ingest, or complete at the hub, and repeated
exchanges.

Leaves with waiting senders send cursor requests. The answer names a message per class, valid if the leaf's
own there has the same id. Unchanged announcements and answers send only the name of an earlier full exchange,
kept in memory; a hub that does not know it asks for a full one.
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
    """An agreed message: leaf sequence, id, hub sequence."""

    leaf_seq: int
    message_id: str
    hub_stream: str
    hub_seq: int


def parse_checkpoint(value: Any) -> Checkpoint:
    """Parse a list of four; raises `ContractError`."""
    match value:
        case [int() as leaf_seq, str() as message_id, str() as stream, int() as hub_seq] if (
            is_sequence(leaf_seq) and is_sequence(hub_seq) and message_id
        ):
            return Checkpoint(leaf_seq, message_id, stream, hub_seq)
    raise ContractError(f"checkpoint {value!r:.160} is not [leaf seq, message id, hub stream, hub seq]")


def is_sequence(value: int) -> bool:
    """Tell whether a number is a sequence (from 1)."""
    return not isinstance(value, bool) and 1 <= value <= MAX_INT


def checkpoint_row(checkpoint: Checkpoint) -> list[int | str]:
    """Return a checkpoint as a record's row."""
    return [checkpoint.leaf_seq, checkpoint.message_id, checkpoint.hub_stream, checkpoint.hub_seq]


@dataclass(frozen=True, slots=True)
class Committed:
    """Ingest's commit of an aggregate created at `created`, up to `seq`; 0 asks for the synced end
    (`parse_synced`).
    """

    stream: str
    created: str
    seq: int
    arrived: int = 0
    """Arrival of that message in microseconds since 1970; 0 if unknown."""
    lake: str = ""
    """Its lake's id (`agent.contract.lake`); "" in a question."""
    place: str = ""
    """The lake's place, for people."""

    def encode(self) -> bytes:
        return encoded(asdict(self))


def parse_committed(data: bytes | str) -> Committed:
    """Parse the record; raises `ContractError`."""
    row = open_record(data, "committed")
    seq = count_of(row, "seq", "committed")
    return Committed(
        field_of(row, "stream", str, "committed"),
        field_of(row, "created", str, "committed"),
        seq,
        count_of(row, "arrived", "committed"),
        check_lake(row.get("lake")) if seq else "",
        nullable(row, "place", str, "committed") or "",
    )


def parse_synced(data: bytes | str, created: str) -> int:
    """Return the synced end of a stream from an answer; raises `ContractError`."""
    row = open_record(data, "synced")
    if "refused" in row:
        raise ContractError(f"synced: {field_of(row, 'refused', str, 'synced')}")
    if field_of(row, "created", str, "synced") != created:
        raise ContractError(f"synced: the stream was made at {row['created']}, not at {created}")
    return count_of(row, "synced", "synced")


@dataclass(frozen=True, slots=True)
class CursorRequest:
    """The asking leaf and its epochs by class."""

    machine: str
    run: str
    epochs: Mapping[str, str]

    def encode(self) -> bytes:
        return encoded({"machine": self.machine, "run": self.run, "epochs": dict(self.epochs)})


@dataclass(frozen=True, slots=True)
class CursorAnswer:
    """The last complete message at the hub by class, if known. `refused` is the reason for no answer."""

    held: Mapping[str, Checkpoint] = field(default_factory=dict)
    refused: str | None = None

    def encode(self) -> bytes:
        held = {cls: checkpoint_row(checkpoint) for cls, checkpoint in self.held.items()}
        return encoded({"held": held, "refused": self.refused})


def parse_cursor_request(data: bytes | str) -> CursorRequest:
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
    row = open_record(data, "cursor answer")
    held = field_of(row, "held", dict, "cursor answer")
    return CursorAnswer(
        {check_class(cls): parse_checkpoint(value) for cls, value in held.items()},
        nullable(row, "refused", str, "cursor answer"),
    )


_EXCHANGE = re.compile(r"[0-9a-f]{12}\Z")
MAX_REPEAT: Final = 64
"""Bytes; full announcements and answers are longer."""


def new_exchange() -> str:
    """Return a unique exchange name."""
    return secrets.token_hex(6)


def check_exchange(value: Any) -> str:
    """Return a valid exchange name; raises `ContractError`."""
    return matching(_EXCHANGE, value, "exchange", "12 digits of a hexadecimal number")


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeat of an earlier exchange."""

    exchange: str

    def encode(self) -> bytes:
        return f'{{"v":{VERSION},"same":"{self.exchange}"}}'.encode()


def parse_repeat(data: bytes) -> Repeat | None:
    """Parse a repeat, None for a full record; raises `ContractError`."""
    if len(data) > MAX_REPEAT:
        return None
    row = open_record(data, "repeat")
    return Repeat(check_exchange(row["same"])) if "same" in row else None
