"""What the hub's streams hold of a domain that is not in bronze yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class WaitingMessage(NamedTuple):
    """A message at the hub: of a batch `run`, `n` and how many readings, None of a direct one, which is one;
    `moment` is when it was sealed or, where that clock was not synchronised, arrived, in microseconds."""

    cls: str
    run: str | None
    n: int | None
    readings: int
    dead: bool
    moment: int


class WaitingLedger(NamedTuple):
    """A ledger record at the hub."""

    cls: str
    stream: str
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the hub's streams hold of a domain behind what bronze has, and the newest ledger records there."""

    messages: list[WaitingMessage] = field(default_factory=list)
    ledgers: list[WaitingLedger] = field(default_factory=list)
