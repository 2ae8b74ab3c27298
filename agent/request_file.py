"""The idempotency keys known when the stream was last trimmed. They are read back from the stream's tail at
start, but a trim takes their batches away, so what is known is written beside the state file before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from agent.ages import Ages
from agent.clock import Instant
from agent.contract import ContractError, Request, parse_clock
from agent.files import write_private
from agent.requests import KNOWN_SECONDS, Key

VERSION = 2

log = structlog.get_logger("requests")


class _File(Struct):
    """`requests` maps a key of a class to its CRC and to when it is forgotten, in seconds since 1970 by the
    wall clock of `saved` (ns since 1970), when the clocks were as `clock` says; both are absent in a file of
    an agent that went by the wall clock alone."""

    version: int
    requests: dict[str, dict[str, tuple[int, float]]]
    saved: int = 0
    clock: str = ""


def save(path: Path, known: Mapping[Key, tuple[int, float]], now: Instant) -> None:
    """Replace the file. `known` maps a key to its CRC and the seconds for which it stays known. Raises
    `OSError`."""
    kept: dict[str, dict[str, tuple[int, float]]] = {}
    for (cls, key), (crc, left) in known.items():
        kept.setdefault(cls, {})[key] = (crc, now.wall / 1e9 + left)
    write_private(path, msgspec.json.encode(_File(VERSION, kept, now.wall, str(now.clock))))


def load(path: Path, now: Instant) -> list[tuple[str, Request, float]]:
    """The requests that are still to be known, each with its class and the seconds since it was stored. A
    file that cannot be used is told and counts as empty: it holds no readings."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
        if found.version != VERSION:
            log.error("idempotency keys are of another version", path=str(path), version=found.version)
            return []
        reckoned = _reckoned(found, now)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, ContractError) as error:
        log.error("idempotency keys of trimmed batches are lost", path=str(path), error=str(error))
        return []
    return [
        (cls, Request(key, crc), max(0.0, KNOWN_SECONDS - (until - reckoned)))
        for cls, requests in found.requests.items()
        for key, (crc, until) in requests.items()
        if until > reckoned
    ]


def _reckoned(found: _File, now: Instant) -> float:
    """Now, in seconds since 1970 by the wall clock as it was when the file was written."""
    if not found.clock:
        return now.wall / 1e9
    return found.saved / 1e9 + Ages(now).of(Instant(found.saved, parse_clock(found.clock)))
