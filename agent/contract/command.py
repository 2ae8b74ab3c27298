"""Commands: what the hub asks of a leaf's programs; the verb stands in the subject."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any

from agent.contract.checks import MAX_INT, ContractError
from agent.contract.fields import field_of, open_record
from agent.contract.names import VERSION


@dataclass(frozen=True, slots=True)
class Command:
    """A command to an agent. `expires` is epoch seconds, None for never; the verb stands in the subject."""

    id: str
    args: Mapping[str, Any] = field(default_factory=dict)
    expires: float | None = None

    def encode(self) -> bytes:
        """The command as it is published."""
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode()


def parse_command(data: bytes | str) -> Command:
    """Read a command; raises `ContractError`."""
    row = open_record(data, "command")
    ident = field_of(row, "id", str, "command")
    if not 1 <= len(ident) <= 64:
        raise ContractError("command: id must have 1 to 64 characters")
    expires = field_of(row, "expires", (int, float, NoneType), "command")
    if expires is not None and not 0 <= expires <= MAX_INT:
        raise ContractError(f"command: expires is {expires!r:.80}, epoch seconds were expected")
    return Command(ident, field_of(row, "args", dict, "command"), None if expires is None else float(expires))
