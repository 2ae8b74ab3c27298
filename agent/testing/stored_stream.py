"""Reads a leaf's stream with the agent's key while it runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
import zstandard
from nats.aio.client import Client

from agent.contract import DEFAULT_CLASS, H_COUNT, H_ENCODING, batch_subject, inbox_prefix, leaf_stream
from agent.demo.plan import Member
from agent.jetstream import JetStream, RawMessage

_MAX_LINES_BYTES: Final = 2**26
_SECONDS: Final = 30.0
"""A hundred messages are asked for at once, and each may be a megabyte."""


class StoredStream:
    """A class's stream over an own connection."""

    def __init__(self, domain: str, nc: Client, cls: str = DEFAULT_CLASS) -> None:
        self.nc = nc
        self.js = JetStream(nc, timeout=_SECONDS)
        self.domain = domain
        self.stream = leaf_stream(domain, cls)

    async def messages(self) -> list[RawMessage]:
        """Return all messages in order."""
        info = await self.js.stream_info(self.stream)
        found: list[RawMessage] = []
        for begin in range(info.first, info.last + 1, 100):
            end = min(begin + 100, info.last + 1)
            got = await asyncio.gather(*(self.js.get_message(self.stream, seq=n) for n in range(begin, end)))
            found += [message for message in got if message is not None]
        return found

    async def rows(self, cls: str) -> list[list[dict[str, Any]]]:
        """Return the readings of all batches in order."""
        prefix = batch_subject(self.domain, cls, "")
        return [rows_of(message) for message in await self.messages() if message.subject.startswith(prefix)]


@asynccontextmanager
async def connected(member: Member) -> AsyncIterator[Client]:
    """Connect to a running leaf's server as its agent."""
    client = await nats.connect(
        member.nats_url,
        nkeys_seed=str(member.state / "keys" / "agent.nk"),
        inbox_prefix=inbox_prefix(member.domain).encode(),
    )
    try:
        yield client
    finally:
        await client.close()


def widen_stream(member: Member, max_bytes: int, cls: str = DEFAULT_CLASS) -> None:
    """Enlarge a class's stream, as the hub's confirmations do."""

    async def widen() -> None:
        async with connected(member) as client:
            stream = StoredStream(member.domain, client, cls)
            info = await stream.js.stream_info(stream.stream)
            await stream.js.update_stream({**info.config, "max_bytes": max_bytes})

    asyncio.run(widen())


def stored_readings(member: Member, cls: str = DEFAULT_CLASS) -> list[dict[str, Any]]:
    """Return all readings of a class in order."""

    async def read() -> list[dict[str, Any]]:
        async with connected(member) as client:
            batches = await StoredStream(member.domain, client, cls).rows(cls)
        return [row for rows in batches for row in rows]

    return asyncio.run(read())


def numbers_in(member: Member, cls: str = DEFAULT_CLASS) -> Counter[float]:
    """Count stored numbers; text-only inputs have digits at the start."""
    values = [str(row["value"]) for row in stored_readings(member, cls) if row["metric"] == "n"]
    return Counter(float(text) for text in values if text[:1].isdigit())


def lines_of(message: RawMessage) -> list[bytes]:
    """Return the unpacked lines of a batch."""
    data = message.data
    if H_ENCODING in message.headers:
        data = zstandard.ZstdDecompressor().decompress(data, max_output_size=_MAX_LINES_BYTES)
    return data.splitlines()


def rows_of(message: RawMessage) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines_of(message)]
    assert len(rows) == int(message.headers[H_COUNT])
    return rows
