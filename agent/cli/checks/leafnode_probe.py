"""Tries the hub's permissions for this leaf over an own leafnode connection.

It uses traced messages and subscriptions to unused subjects, so nothing changes. The registrar recognises the
connection's name (`CHECK_SERVER`).
"""

from __future__ import annotations

import time
from asyncio import StreamReader
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.base.wait import timeout
from agent.cli.checks.permissions import is_granted, sample
from agent.cli.checks.streams import Trace, parse_trace, trace_headers
from agent.server import joining
from agent.server.dialling import LINE, Greeted
from agent.server.hub_route import PLAIN, Route
from agent.server.joining import Dialled, LetIn, error_text
from agent.server.permissions import Permissions

_TRACES: Final = 1.5
_ANSWERS: Final = "$JSC.R.*"
"""Subjects for answers between servers, allowed both ways."""


@dataclass(frozen=True, slots=True)
class Joined(LetIn):
    """The hub accepted the leaf; results of the trial."""

    refused: tuple[str, ...] = ()
    """Errors by subject."""
    traces: Mapping[str, Trace] = field(default_factory=dict)
    """Traces by subject."""
    asked: float = 0.0
    answered: float = 0.0
    """Epoch seconds of this machine."""


async def dial(url: str, seed: Path | None, needed: Permissions, route: Route = PLAIN) -> Dialled:
    """Dial a hub address as `joining.dial`, and try the needed permissions."""

    async def explore(greeting: Greeted, info: Mapping[str, Any]) -> Joined:
        return await _explored(greeting, info, needed)

    return await joining.dial(url, seed, route, explore)


async def _explored(greeting: Greeted, info: Mapping[str, Any], needed: Permissions) -> Joined:
    publish = [sample(subject) for subject in needed.publish if is_granted(info, "publish", subject)]
    subscribe = [sample(subject) for subject in needed.subscribe if is_granted(info, "subscribe", subject)]
    if sample(_ANSWERS) not in publish or sample(_ANSWERS) not in subscribe:
        return Joined(info)  # without this subject no server can answer
    asked_at = time.time()
    refused, traces = await _try(greeting, publish, subscribe, sample(_ANSWERS))
    return Joined(info, tuple(refused), traces, asked_at, time.time())


async def _try(
    greeting: Greeted,
    publish: Collection[str],
    subscribe: Collection[str],
    reply: str,
) -> tuple[list[str], dict[str, Trace]]:
    """Return errors, and traces of the greeting server."""
    reader, hub = greeting.reader, str(greeting.info.get("server_name"))
    for subject in subscribe:
        greeting.write(f"LS+ {subject}\r\n".encode())
    named = "".join(f"{name}: {value}\r\n" for name, value in trace_headers(reply).items())
    head = f"NATS/1.0\r\n{named}\r\n"
    for subject in publish:
        greeting.write(f"HMSG {subject} {len(head)} {len(head)}\r\n{head}\r\n".encode())
    refused: list[str] = []
    traces: dict[str, Trace] = {}
    with suppress(TimeoutError):
        async with timeout(_TRACES):
            # A server that hears something that it does not allow hangs up.
            while len(traces) < len(publish) and (line := await reader.readline()):
                if line.startswith(b"-ERR"):
                    refused.append(error_text(line))
                elif line.startswith(b"PING"):
                    greeting.write(b"PONG\r\n")
                elif line.startswith((b"LMSG", b"HMSG")):
                    trace = parse_trace(await _body(reader, line))
                    # Servers behind the hub answer too, with what they would do.
                    traces |= {trace.subject: trace} if trace is not None and trace.server == hub else {}
    return refused, traces


async def _body(reader: StreamReader, line: bytes) -> bytes:
    size = int(line.split()[-1])
    if size > LINE:
        raise ValueError("it sent too much")
    return (await reader.readexactly(size + 2))[:size]
