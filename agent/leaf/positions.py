"""How far pull inputs are, and the file of that beside the state file, which survives its loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

POSITIONS_VERSION = 1
POSITIONS_NAME = "positions.json"

log = structlog.get_logger("state")


class PullPosition(Struct, frozen=True):
    """Where a pull input goes on after its last stored batch, which is at `seq`. The stream has it more
    exactly as long as it holds that batch, but may have trimmed it."""

    text: str
    seq: int


Positions = dict[str, dict[str, PullPosition]]
"""By class and input."""


class _PositionsFile(Struct):
    version: int
    domain: str
    positions: Positions


def encode_positions(domain: str, positions: Mapping[str, Mapping[str, PullPosition]]) -> bytes:
    """The file as it is written."""
    return msgspec.json.encode({"version": POSITIONS_VERSION, "domain": domain, "positions": positions})


def load_positions(path: Path, domain: str) -> Positions:
    """The positions of a domain; none where there is no file of its. One that cannot be read is logged and
    counts as none: inputs whose position is lost do not begin by themselves."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_PositionsFile)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("cannot read the positions of inputs", path=str(path), error=str(error))
        return {}
    if (found.version, found.domain) != (POSITIONS_VERSION, domain):
        log.error("positions are of another version or domain", path=str(path), domain=found.domain)
        return {}
    return found.positions
