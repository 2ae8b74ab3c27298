"""The greeting of a server, as a client sees it. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from agent.base.listen_sockets import near_host

_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a nats-server says of itself to each client that connects."""

    server_name: str
    version: str
    jetstream: bool


@dataclass(frozen=True, slots=True)
class Stranger:
    """Something listens, but it does not greet as a nats-server does (or hangs)."""


async def greeting(address: tuple[str, int]) -> Greeting | Stranger | None:
    """What answers on an address within a second; None when nothing listens there."""
    host, port = address
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(near_host(host), port)
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            line = await reader.readline()
    except (OSError, ValueError, TimeoutError):
        return Stranger()
    finally:
        writer.transport.abort()
    return _parse(line)


def _parse(line: bytes) -> Greeting | Stranger:
    verb, _, body = line.partition(b" ")
    if verb != b"INFO":
        return Stranger()
    try:
        row = json.loads(body)
        return Greeting(str(row["server_name"]), str(row["version"]), bool(row.get("jetstream", False)))
    except (ValueError, KeyError, TypeError):
        return Stranger()
