"""Positions on which leaf and hub agreed, and up to which ingest has committed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from agent.contract.checks import MAX_INT, ContractError
from agent.contract.fields import count_of, field_of, open_record
from agent.contract.names import VERSION


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
    """What `ingest` has committed of an aggregate: all up to `seq` of the stream made at `created`."""

    stream: str
    created: str
    seq: int

    def encode(self) -> bytes:
        """The record as it is sent."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode()


def parse_committed(data: bytes | str) -> Committed:
    """Read a committed record; raises `ContractError`."""
    row = open_record(data, "committed")
    return Committed(
        field_of(row, "stream", str, "committed"),
        field_of(row, "created", str, "committed"),
        count_of(row, "seq", "committed"),
    )
