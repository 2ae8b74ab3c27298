"""What the servers show of a declared link: the stream here, its server's word on it, the origin. Pure.

The server's `lag` is what the last message that came in had said, so it stays 0 while the origin is away or
while messages are dropped; it is not used. `active` is the time since a message or a heartbeat, which comes
each second, and -1 where nothing was ever heard since the server started.
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
    """A mirror or source as this server shows it: seconds since a sign of life (None: never), the origin's
    sequence up to which it is here, and the server's last error."""

    active: float | None
    seq: int
    err_code: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class LocalStream:
    """The stream on this side; `origin_created` is when the origin of a mirror was made, as it was when the
    mirror was. `kind` is "" for a stream that was not made from the configuration."""

    kind: str
    config: Mapping[str, Any]
    messages: int
    first: int
    last: int
    origin_created: str
    entries: Mapping[Key, CopyStatus]


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """What the origin answered: its first and last sequence, the `newest` one that the link takes, and
    whether it takes all in between (`exact`); `problem` says why there was no answer."""

    kind: Literal["answers", "absent", "silent", "forbidden"]
    created: str = ""
    first: int = 0
    last: int = 0
    newest: int = 0
    exact: bool = True
    problem: str = ""


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
