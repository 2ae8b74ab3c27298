"""What happens to a reading on its way that other parts of the leaf's agent act on."""

from __future__ import annotations

from dataclasses import dataclass

from agent.contract import MessageId


@dataclass(frozen=True, slots=True)
class BatchStored:
    """The leaf's stream acknowledged a batch."""

    id: MessageId
    seq: int
    """Of its message in the stream."""
    readings: int
    """How many readings it holds; 0 in a batch of dead letters."""
    input: str
    position: str | None
    """How far its pull input is with it."""
