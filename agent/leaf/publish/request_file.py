"""The idempotency keys known when the stream was last trimmed. They are read back from the stream's tail at
start, but a trim takes their batches away, so what is known is written beside the state file before it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from agent.base.clock import Instant
from agent.base.files import write_private
from agent.contract import Request, parse_clock
from agent.leaf.publish.ages import Ages
from agent.leaf.publish.idempotency import KNOWN_SECONDS, Key

VERSION: Final = 3
_UNSCOPED: Final = 2
"""Written by agents that knew keys without a scope, and contents by their CRC-32."""

log = structlog.get_logger("requests")


class _File(Struct):
    """`known` maps a key of a class, behind its scope and a colon, to the mark of its content in hexadecimal
    digits and to when it is forgotten, in seconds since 1970 by the wall clock of `saved` (ns since 1970),
    when the clocks were as `clock` says; both are absent in a file of an agent that went by the wall clock
    alone. `requests` is what version 2 has instead: a key of a class with its CRC-32."""

    version: int
    known: dict[str, dict[str, tuple[str, float]]] = {}
    requests: dict[str, dict[str, tuple[int, float]]] = {}
    saved: int = 0
    clock: str = ""


def save(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Replace the file. `known` maps a key to the mark of its content and the seconds for which it stays
    known. Raises `OSError`."""
    write_private(path, _encoded(known, now))


def append(path: Path, known: Mapping[Key, tuple[bytes, float]], now: Instant) -> None:
    """Add to the file, which `save` has made, like that. Raises `OSError`."""
    with path.open("ab") as file:
        file.write(_encoded(known, now))
        file.flush()
        os.fsync(file.fileno())


def _encoded(known: Mapping[Key, tuple[bytes, float]], now: Instant) -> bytes:
    kept: dict[str, dict[str, tuple[str, float]]] = {}
    for (cls, name), (mark, left) in known.items():
        kept.setdefault(cls, {})[name] = (mark.hex(), now.wall / 1e9 + left)
    return msgspec.json.encode(_File(VERSION, kept, saved=now.wall, clock=str(now.clock))) + b"\n"


def load(path: Path, now: Instant) -> list[tuple[str, Request, float]]:
    """The requests that are still to be known, each with its class and the seconds since it was stored. What
    cannot be used of a file is logged and left out: it holds no readings. A kill may have cut off what was
    added last."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.error("cannot read idempotency keys", path=str(path), error=str(error))
        return []
    return [one for at, line in enumerate(lines) for one in _read(path, line, now, cut=at > 0)]


def _read(path: Path, line: bytes, now: Instant, *, cut: bool) -> list[tuple[str, Request, float]]:
    """The requests of one line, which `cut` says may have been cut off at the end of the file."""
    try:
        found = msgspec.json.decode(line, type=_File)
        if found.version not in (_UNSCOPED, VERSION):
            log.error("idempotency keys are of another version", path=str(path), version=found.version)
            return []
        reckoned = _reckoned(found, now)
        requests = list(_requests(found))
    except (ValueError, msgspec.MsgspecError) as error:
        if not cut or line.endswith(b"\n"):
            log.error("idempotency keys of trimmed batches are lost", path=str(path), error=str(error))
        return []
    return [
        (cls, request, max(0.0, KNOWN_SECONDS - (until - reckoned)))
        for cls, request, until in requests
        if until > reckoned
    ]


def _requests(found: _File) -> Iterator[tuple[str, Request, float]]:
    """The requests of a file with their class and when they are forgotten; raises `ValueError`."""
    for cls, unscoped in found.requests.items():
        for key, (crc, until) in unscoped.items():
            yield cls, Request(key, crc), until
    for cls, scoped in found.known.items():
        for name, (text, until) in scoped.items():
            scope, _, key = name.partition(":")
            mark = bytes.fromhex(text)
            if scope:
                yield cls, Request(key, 0, mark, scope), until
            else:
                yield cls, Request(key, int.from_bytes(mark, "big")), until


def _reckoned(found: _File, now: Instant) -> float:
    """Now, in seconds since 1970 by the wall clock as it was when the file was written."""
    if not found.clock:
        return now.wall / 1e9
    return found.saved / 1e9 + Ages(now).of(Instant(found.saved, parse_clock(found.clock)))
