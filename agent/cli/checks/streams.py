"""Finds doubly stored messages by tracing (ADR-41 of nats-architecture-and-design), which delivers nothing.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from agent.cli.checks import Cause, Finding, Group
from agent.cli.checks.permissions import is_granted, sample
from agent.cli.checks.server import DOMAIN
from agent.contract import Exit

GROUP: Final = Group("streams")
TRACE_TO: Final = "Nats-Trace-Dest"
TRACE_ONLY: Final = "Nats-Trace-Only"
_LEAF: Final = 4
"""Connection kind of leaf links (nats-server 2.15.1)."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A server's handling of a message on `subject`."""

    subject: str
    server: str
    """Server name."""
    domain: str
    """JetStream domain, "" without."""
    time: float
    """Epoch seconds by its clock."""
    heard_by: frozenset[str]
    """Matching subscriptions."""
    links: frozenset[str]
    """Servers behind matching links."""
    streams: frozenset[str]
    """Streams that would store it."""


def trace_headers(destination: str) -> dict[str, str]:
    """Return headers for tracing; answers go to `destination`."""
    return {TRACE_TO: destination, TRACE_ONLY: "true"}


def parse_trace(body: bytes) -> Trace | None:
    """Parse a server's answer, None for others."""
    try:
        row: Mapping[str, Any] = json.loads(body)
        events, server = row["events"], row["server"]
        ingress = next(event for event in events if event["type"] == "in")
        egress = [event for event in events if event["type"] == "eg" and not event.get("error")]
        return Trace(
            subject=str(ingress["subj"]),
            server=str(server["name"]),
            domain=str(server.get("domain", "")),
            time=datetime.fromisoformat(ingress["ts"]).timestamp(),
            heard_by=frozenset(str(event["sub"]) for event in egress if "sub" in event),
            links=frozenset(str(event["name"]) for event in egress if event.get("kind") == _LEAF),
            streams=frozenset(str(event["stream"]) for event in events if event["type"] == "js"),
        )
    except (ValueError, KeyError, TypeError, StopIteration, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of this server."""

    subjects: Mapping[str, tuple[str, ...]]
    """Stored subjects by stream."""
    traces: Mapping[str, tuple[Trace, ...]] | None
    """Traces per subject; None without permission."""


def twice(streams: Streams, server: str, hub_info: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield doubly stored streams, by traces or by `hub_info`."""
    if streams.traces is None:
        yield _by_the_link(streams, hub_info)
        return
    copies = []
    for name, subjects in streams.subjects.items():
        for subject in subjects:
            for trace in streams.traces.get(sample(subject), ()):
                others = trace.streams - {name} if trace.server == server else trace.streams
                copies += [(subject, name, other, trace.domain) for other in sorted(others)]
    for subject, name, other, where in dict.fromkeys(copies):
        place = f"in domain {where}" if where else "on a server without a domain"
        yield GROUP.failure(
            f"{subject}, which {name} stores here, is stored by {other} {place} too",
            f"give {other} other subjects (a source of {name} instead), or keep them off the link: "
            f'deny_exports: ["{subject}"] in the remote of this server',
        )
    if not copies:
        yield GROUP.ok(f"what the {len(streams.subjects)} streams here store is stored nowhere else")


def _by_the_link(streams: Streams, hub_info: Mapping[str, Any] | None) -> Finding:
    subjects = [subject for many in streams.subjects.values() for subject in many]
    if hub_info is None:
        return GROUP.warning(
            "whether another stream stores the same subjects is not known: neither the agent's user nor "
            "the link tells",
            "restore the link, or name hub_urls and link_seed_file, so that the hub can be asked",
        ).after(Cause.HUB, Cause.USER)
    if open_to := [subject for subject in subjects if is_granted(hub_info, "publish", sample(subject))]:
        return GROUP.warning(
            f"the link lets {open_to[0]} through, so that a stream of the hub may store it a second time",
            f'take "{open_to[0]}" out of what the hub\'s user of this leaf may publish',
        )
    return GROUP.ok("the link lets no subject of a stream through, so nothing is stored twice")


def two_leaves(domain: str, count: int, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Judge whether several servers answer for a domain."""
    if count > 1:
        which = f": {', '.join(sorted(names))}" if names else ""
        yield DOMAIN.failure(
            f"{count} servers answer for domain {domain}{which}",
            "stop all but one; give each machine a domain and a key of its own (petiole enrol)",
            Exit.CONFLICT,
        )
