"""The positions of pull inputs beside the state file, for when that is lost or damaged. They stand in the
batches too, but a trim takes those away."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

VERSION = 1
NAME = "positions.json"

log = structlog.get_logger("state")


class PullPosition(Struct, frozen=True):
    """Where a pull input goes on after its last stored batch, which is at `seq`. The stream tells it more
    exactly as long as it holds that batch, but may have trimmed it."""

    text: str
    seq: int


Positions = dict[str, dict[str, PullPosition]]
"""By class and input."""


class _File(Struct):
    version: int
    domain: str
    positions: Positions


def encode(domain: str, positions: Mapping[str, Mapping[str, PullPosition]]) -> bytes:
    """The file as it is written."""
    return msgspec.json.encode({"version": VERSION, "domain": domain, "positions": positions})


def load(path: Path, domain: str) -> Positions:
    """The positions of a domain; none where there is no file of its. One that cannot be read is logged and
    counts as none: inputs whose position is lost do not begin by themselves."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("cannot read the positions of inputs", path=str(path), error=str(error))
        return {}
    if (found.version, found.domain) != (VERSION, domain):
        log.error("positions are of another version or domain", path=str(path), domain=found.domain)
        return {}
    return found.positions
