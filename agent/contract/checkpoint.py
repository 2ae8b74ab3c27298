"""A place on which leaf and hub agreed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.contract.checks import MAX_INT, ContractError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place where leaf and hub agreed: the leaf's sequence, the id of the message there, and where the hub
    holds that message."""

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
    """A checkpoint as it stands in a record."""
    return [checkpoint.leaf_seq, checkpoint.message_id, checkpoint.hub_stream, checkpoint.hub_seq]
