"""The idempotency keys known when the stream was last trimmed. They are read back from the stream's tail at
start, but a trim takes their batches away, so what is known is written beside the state file before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from agent.contract import Request
from agent.files import write_private
from agent.requests import KNOWN_SECONDS, Key

VERSION = 2

log = structlog.get_logger("requests")


class _File(Struct):
    """`requests` maps a key of a class to its CRC and to when it is forgotten, in seconds since 1970."""

    version: int
    requests: dict[str, dict[str, tuple[int, float]]]


def save(path: Path, known: Mapping[Key, tuple[int, float]], now: float) -> None:
    """Replace the file. `known` maps a key to its CRC and the seconds for which it stays known; `now` is
    seconds since 1970. Raises `OSError`."""
    kept: dict[str, dict[str, tuple[int, float]]] = {}
    for (cls, key), (crc, left) in known.items():
        kept.setdefault(cls, {})[key] = (crc, now + left)
    write_private(path, msgspec.json.encode(_File(VERSION, kept)))


def load(path: Path, now: float) -> list[tuple[str, Request, float]]:
    """The requests that are still to be known, each with its class and the seconds since it was stored. A
    file that cannot be used is told and counts as empty: it holds no readings."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.error("idempotency keys of trimmed batches are lost", path=str(path), error=str(error))
        return []
    if found.version != VERSION:
        log.error("idempotency keys are of another version", path=str(path), version=found.version)
        return []
    return [
        (cls, Request(key, crc), max(0.0, KNOWN_SECONDS - (until - now)))
        for cls, requests in found.requests.items()
        for key, (crc, until) in requests.items()
        if until > now
    ]
