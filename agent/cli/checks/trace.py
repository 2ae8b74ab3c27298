"""What servers tell of a message that they only traced (ADR-41 of nats-architecture-and-design): where it
would go. Such a message is delivered to nobody and stored in no stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

TRACE_TO: Final = "Nats-Trace-Dest"
TRACE_ONLY: Final = "Nats-Trace-Only"
_LEAF: Final = 4
"""The kind of connection that is a leaf's link, seen on nats-server 2.15.1."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one server would do with a message on `subject`: its own name, domain ("" without) and `time`
    (epoch seconds), the subscriptions that would get it, the servers to which links would carry it, and the
    streams that would store it."""

    subject: str
    server: str
    domain: str
    time: float
    heard_by: frozenset[str]
    links: frozenset[str]
    streams: frozenset[str]


def headers(destination: str) -> dict[str, str]:
    """The headers under which a message is only traced; what servers tell of it goes to `destination`."""
    return {TRACE_TO: destination, TRACE_ONLY: "true"}


def parse(body: bytes) -> Trace | None:
    """What one server told; None where it is not that."""
    try:
        row: Mapping[str, Any] = json.loads(body)
        events, server = row["events"], row["server"]
        came = next(one for one in events if one["type"] == "in")
        left = [one for one in events if one["type"] == "eg" and not one.get("error")]
        return Trace(
            subject=str(came["subj"]),
            server=str(server["name"]),
            domain=str(server.get("domain", "")),
            time=datetime.fromisoformat(came["ts"]).timestamp(),
            heard_by=frozenset(str(one["sub"]) for one in left if "sub" in one),
            links=frozenset(str(one["name"]) for one in left if one.get("kind") == _LEAF),
            streams=frozenset(str(one["stream"]) for one in events if one["type"] == "js"),
        )
    except (ValueError, KeyError, TypeError, StopIteration, AttributeError):
        return None
