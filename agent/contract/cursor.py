"""The cursor: a leaf whose senders wait for the hub asks up to where the hub holds everything, more often
than it announces itself. The answer is a position of each class that the hub certainly holds; the leaf relies
on it if its own message there has the same id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.contract.checkpoint import Checkpoint, checkpoint_row, parse_checkpoint
from agent.contract.checks import ContractError, check_class, check_epoch, check_machine, check_run
from agent.contract.fields import field_of, open_record, optional
from agent.contract.names import VERSION


@dataclass(frozen=True, slots=True)
class CursorRequest:
    """Who asks, and the epoch of each class that it asks about."""

    machine: str
    run: str
    epochs: Mapping[str, str]

    def encode(self) -> bytes:
        """The question as it is requested."""
        row = {"v": VERSION, "machine": self.machine, "run": self.run, "epochs": dict(self.epochs)}
        return json.dumps(row, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class CursorAnswer:
    """The newest message of each class that the hub holds with all before it; a class is left out if that is
    unknown now. `refused` is a sentence why nothing is answered."""

    held: Mapping[str, Checkpoint] = field(default_factory=dict)
    refused: str | None = None

    def encode(self) -> bytes:
        """The answer as it is sent."""
        held = {cls: checkpoint_row(checkpoint) for cls, checkpoint in self.held.items()}
        return json.dumps(
            {"v": VERSION, "held": held, "refused": self.refused}, separators=(",", ":")
        ).encode()


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
        optional(row, "refused", lambda _: str(field_of(row, "refused", str, "cursor answer"))),
    )
