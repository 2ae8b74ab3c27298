"""Announcements and answers that say nothing new.

The hub gives every full answer the name of its exchange. A leaf whose next announcement would be the same but
for the clock sends that name instead, and so does a hub whose answer would be the same. Both sides keep the
newest exchange in memory only. A hub that does not know the name has the leaf announce in full; a hub of an
earlier release names no exchange, and a leaf of an earlier release never sends a name.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from agent.contract.checks import matching
from agent.contract.fields import open_record
from agent.contract.names import VERSION

_EXCHANGE = re.compile(r"[0-9a-f]{12}\Z")
_MAX_REPEAT: Final = 64
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
        """The record as it is sent."""
        return json.dumps({"v": VERSION, "same": self.exchange}, separators=(",", ":")).encode()


def parse_repeat(data: bytes) -> Repeat | None:
    """Read a repeat, None if the record is one in full; raises `ContractError`."""
    if len(data) > _MAX_REPEAT:
        return None
    row = open_record(data, "repeat")
    return Repeat(check_exchange(row["same"])) if "same" in row else None
