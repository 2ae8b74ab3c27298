"""Which numbers of the load a hub's stream holds, and how often."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import zstandard
from nats.aio.client import Client

from agent.contract import H_ENCODING, parse_subject
from agent.jetstream import JetStream, RawMessage
from bench.relink_load import DEVICE

_AT_ONCE = 200


async def numbers(nc: Client, stream: str) -> Counter[int]:
    """How often each number is there."""
    js = JetStream(nc)
    info = await js.stream_info(stream)
    found: Counter[int] = Counter()
    for begin in range(info.first, info.last + 1, _AT_ONCE):
        span = range(begin, min(begin + _AT_ONCE, info.last + 1))
        for message in await asyncio.gather(*(js.get_message(stream, seq=seq) for seq in span)):
            if message is not None:
                found.update(_numbers(message))
    return found


def _numbers(message: RawMessage) -> list[int]:
    if not message.subject.startswith("tel."):
        return [int(message.data)]
    if parse_subject(message.subject).kind != "batch":
        return []
    data = message.data
    if H_ENCODING in message.headers:
        data = zstandard.ZstdDecompressor().decompress(data, max_output_size=2**26)
    rows = [json.loads(line) for line in data.splitlines()]
    # The agent's own readings, such as the time to the first loss, come in between.
    return [int(row["value"]) for row in rows if row.get("device") == DEVICE]
