"""Reading headers from the end of a stream: what was stored, without moving the payloads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from agent.jetstream import JetStream, JetStreamError, UnavailableError

_PULL = 1_000
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoredHeaders:
    """The headers of one stored message and where it is: `time` is seconds since 1970 by the server's
    clock."""

    seq: int
    time: float
    headers: Mapping[str, str]
    subject: str = ""


def ack_place(reply: str) -> tuple[int, float]:
    """Stream sequence and store time from the reply subject of a delivered message, of the short form or the
    one with domain and account (server ADR-15). Raises `ValueError` for another subject."""
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) not in (9, 11, 12):
        raise ValueError(f"{reply!r} is not the reply subject of a consumer")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 2]) / 1e9


async def read_headers(
    nc: Client,
    js: JetStream,
    stream: str,
    start: Mapping[str, Any],
    take: Callable[[StoredHeaders], None],
    enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Give all messages from `start` (a consumer's deliver policy with its filter) to the end of the stream
    as it is now to `take`, in order; False where `enough`, which is asked now and then, ended it before.
    Raises `ApiError`, or `UnavailableError` when the server stops answering midway."""
    config = {
        "name": nc.new_inbox().rpartition(".")[2],
        "ack_policy": "none",
        "mem_storage": True,
        "headers_only": True,
        "inactive_threshold": 30_000_000_000,
        **start,
    }
    consumer = await js.create_consumer(stream, config)
    try:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}"
        return await _pull(nc, subject, consumer.pending, take, enough)
    except (TimeoutError, NatsError, OSError) as error:
        why = str(error) or "no answer"
        raise UnavailableError(f"reading {stream} stopped before its end: {why}") from None
    finally:
        # Best effort: a consumer that is left behind goes by itself after `inactive_threshold`.
        with contextlib.suppress(JetStreamError, NatsError, OSError):
            await js.delete_consumer(stream, consumer.name)


async def _pull(
    nc: Client,
    subject: str,
    pending: int,
    take: Callable[[StoredHeaders], None],
    enough: Callable[[], bool],
) -> bool:
    """Pull `pending` messages, a bounded number at a time, or fewer where the rest is gone by now: a pull
    that does not wait ends with a status, which has no reply subject. Raises `TimeoutError` when nothing
    comes."""
    taken = 0
    ended = False
    arrived = asyncio.Event()
    inbox = nc.new_inbox()

    async def receive(msg: Msg) -> None:
        nonlocal taken, ended
        arrived.set()
        if not msg.reply:
            ended = True
            return
        taken += 1
        take(StoredHeaders(*ack_place(msg.reply), msg.headers or {}, msg.subject))

    subscription = await nc.subscribe(inbox, cb=receive)
    try:
        while taken < pending and not ended:
            if enough():
                return False
            size = min(_PULL, pending - taken)
            end = taken + size
            await nc.publish(subject, json.dumps({"batch": size, "no_wait": True}).encode(), inbox)
            while taken < end and not ended:
                arrived.clear()
                async with asyncio.timeout(_PROGRESS_SECONDS):
                    await arrived.wait()
        return True
    finally:
        with contextlib.suppress(NatsError, OSError):
            await subscription.unsubscribe()
