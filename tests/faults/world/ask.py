"""Asks a server of a fault environment over a short connection, so that no fault outlives a question."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats

from agent.contract import inbox_prefix


def asked(url: str, seed: Path, subject: str, payload: bytes = b"") -> dict[str, Any]:
    """What a server answers the registrar, whose key is `seed`. Raises what the connection or the request
    meets."""
    return asyncio.run(_asked(url, seed, subject, payload))


async def _asked(url: str, seed: Path, subject: str, payload: bytes) -> dict[str, Any]:
    nc = await nats.connect(
        url,
        nkeys_seed=str(seed),
        inbox_prefix=inbox_prefix("registrar").encode(),
        allow_reconnect=False,
        connect_timeout=2,
        error_cb=_quiet,
    )
    try:
        found: dict[str, Any] = json.loads((await nc.request(subject, payload, timeout=3)).data)
        return found
    finally:
        await nc.close()


async def _quiet(_error: Exception) -> None:
    """Errors are those that a request raises."""
