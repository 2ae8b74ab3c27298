"""Reading headers from the end of a stream: what was stored, without moving the payloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.jetstream import JetStream, UnavailableError

_PULL = 5_000
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoredHeaders:
    """The headers of one stored message and where it is: `time` is seconds since 1970 by the server's
    clock."""

    seq: int
    time: float
    headers: Mapping[str, str]


def ack_place(reply: str) -> tuple[int, float]:
    """Stream sequence and store time from the reply subject of a delivered message, of the short form or the
    one with domain and account (server ADR-15). Raises `ValueError` for another subject."""
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        raise ValueError(f"{reply!r} is not the reply subject of a consumer")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 2]) / 1e9


async def read_headers(
    nc: Client, js: JetStream, stream: str, start: Mapping[str, Any]
) -> list[StoredHeaders]:
    """All messages from `start` (a consumer's deliver policy with its filter) to the end of the stream as it
    is now, in order. Raises `ApiError`, or `UnavailableError` when the server stops answering midway."""
    config = {
        "name": nc.new_inbox().rpartition(".")[2],
        "ack_policy": "none",
        "mem_storage": True,
        "headers_only": True,
        "inactive_threshold": 30_000_000_000,
        **start,
    }
    consumer = await js.create_consumer(stream, config)
    found: list[StoredHeaders] = []
    arrived = asyncio.Event()
    inbox = nc.new_inbox()

    async def take(msg: Msg) -> None:
        if msg.reply:
            found.append(StoredHeaders(*ack_place(msg.reply), msg.headers or {}))
        arrived.set()

    subscription = await nc.subscribe(inbox, cb=take)
    try:
        for begin in range(0, consumer.pending, _PULL):
            end = min(begin + _PULL, consumer.pending)
            pull = {"batch": end - begin, "expires": int(_PROGRESS_SECONDS * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}"
            await nc.publish(subject, json.dumps(pull).encode(), inbox)
            while len(found) < end:
                arrived.clear()
                async with asyncio.timeout(_PROGRESS_SECONDS):
                    await arrived.wait()
    except TimeoutError:
        raise UnavailableError(
            f"reading {stream} stopped at {len(found)} of {consumer.pending} messages"
        ) from None
    finally:
        await subscription.unsubscribe()
        await js.delete_consumer(stream, consumer.name)
    return found
