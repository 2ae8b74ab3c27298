"""What the servers show of a declared link: the stream here, its server's report on it, the origin. Pure.

The server's `lag` is the one in the last message that arrived, so it stays 0 while the origin is unreachable
or while messages are dropped; it is not used. `active` is the time since a message or a heartbeat, which
comes each second, and -1 if nothing was heard since the server started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from agent.config.mirrors import KIND_METADATA, ORIGIN_METADATA, Key, key_of

STALLED: Final = 10228
"""The server's error where `$JS.FC` can't travel back (2.15.1)."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """A mirror or source as this server shows it, with the server's last error."""

    active: float | None
    """Seconds since a sign of life, None for never."""
    seq: int
    """The origin's sequence up to which it is here."""
    err_code: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class LocalStream:
    """The stream on this side."""

    kind: str
    """"mirror" or "source", "" for a stream that was not created from the configuration."""
    config: Mapping[str, Any]
    messages: int
    first: int
    last: int
    origin_created: str
    """When the origin was created, as it was when the mirror was created."""
    entries: Mapping[Key, CopyStatus]


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """What the origin answered."""

    kind: Literal["answers", "absent", "silent", "forbidden"]
    created: str = ""
    first: int = 0
    last: int = 0
    newest: int = 0
    """The newest sequence that the link takes."""
    exact: bool = True
    """Whether the link takes every sequence."""
    problem: str = ""
    """Why there was no answer."""


def local_stream(answer: Mapping[str, Any]) -> LocalStream:
    """Read the answer to STREAM.INFO of the stream on this side."""
    config, state = answer["config"], answer["state"]
    metadata = config.get("metadata") or {}
    rows = list(answer.get("sources") or [])
    entries = {key_of(row): _entry(row, row.get("seq", 0)) for row in rows}
    if (mirror := answer.get("mirror")) is not None:
        entries[key_of(mirror)] = _entry(mirror, state["last_seq"])
    return LocalStream(
        kind=metadata.get(KIND_METADATA, ""),
        config=config,
        messages=state["messages"],
        first=state["first_seq"],
        last=state["last_seq"],
        origin_created=metadata.get(ORIGIN_METADATA, ""),
        entries=entries,
    )


def _entry(row: Mapping[str, Any], seq: int) -> CopyStatus:
    error = row.get("error") or {}
    return CopyStatus(
        active=None if row["active"] < 0 else row["active"] / 1e9,
        seq=seq,
        err_code=error.get("err_code", 0),
        error=error.get("description", ""),
    )
