"""What is seen of a link while it breaks and mends: what the hub held when, what the product said of it, and
which numbers of the load are in the end at the hub. Looks only; times are seconds since 1970."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import nats.errors
import zstandard
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from agent.contract import H_ENCODING, H_SOURCE, parse_subject
from agent.hub.registrar.aggregate import parse_source_header
from agent.jetstream import JetStream, JetStreamError, RawMessage
from agent.testing.stored_stream import lines_of
from bench.link_processes import AgentProcess
from bench.relink_load import DEVICE

V = TypeVar("V")

_HELD_SECONDS = 0.02
_STATUS_SECONDS = 0.05
_ANSWER_SECONDS = 0.2


@dataclass(slots=True)
class Trace(Generic[V]):
    """What was seen when; only changes are kept."""

    seen: list[tuple[float, V]] = field(default_factory=list)

    def add(self, value: V) -> None:
        if not self.seen or self.seen[-1][1] != value:
            self.seen.append((time.time(), value))

    def first(self, true: Callable[[V], bool], since: float) -> float | None:
        """When a value for which this is true was there first, at or after a time; None if never."""
        begin = bisect_left(self.seen, since, key=lambda one: one[0])
        if begin and true(self.seen[begin - 1][1]):
            return since
        return next((at for at, value in self.seen[begin:] if true(value)), None)


async def deliver(
    nc: Client,
    stream: str,
    see: Callable[[Msg], Awaitable[None]],
    *,
    name: str = "seen",
    policy: str = "all",
    headers_only: bool = False,
) -> Subscription:
    """Have the messages of a hub's stream seen, all of them or by the `policy` of a consumer."""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox, cb=see)
    config = {
        "name": name,
        "deliver_subject": inbox,
        "deliver_policy": policy,
        "ack_policy": "none",
        "headers_only": headers_only,
    }
    await JetStream(nc).api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    return subscription


def unpacked(message: Msg) -> bytes:
    """What a message holds, decompressed if it is a batch that the agent has compressed."""
    if not (message.headers or {}).get(H_ENCODING):
        return message.data
    return zstandard.ZstdDecompressor().decompress(message.data, max_output_size=2**26)


async def watch_held(nc: Client, stream: str, trace: Trace[int]) -> None:
    """Follow the leaf sequence of the newest message in a hub's stream that sources one stream of a leaf. The
    message is looked at, not the cursor: what a cursor says may be wrong."""
    js = JetStream(nc, timeout=_ANSWER_SECONDS)

    async def look() -> None:
        newest = await js.get_message(stream, last_by_subject=">")
        if newest is not None:
            trace.add(parse_source_header(newest.headers[H_SOURCE])[1])

    await _again_and_again(look, _HELD_SECONDS)


async def watch_state(agent: AgentProcess, trace: Trace[str]) -> None:
    """Follow the state in which the product says that its link is."""

    async def look() -> None:
        trace.add(link_state(await asyncio.to_thread(agent.status)))

    await _again_and_again(look, _STATUS_SECONDS)


def link_state(status: dict[str, Any]) -> str:
    """The one word for the link in what `/status` shows; "unseen" where nothing answers."""
    return str(status["link"]["state"]) if status else "unseen"


async def _again_and_again(look: Callable[[], Awaitable[None]], pause: float) -> None:
    while True:
        # What fails here is the fault that is measured.
        with contextlib.suppress(JetStreamError, nats.errors.Error, OSError, TimeoutError):
            await look()
        await asyncio.sleep(pause)


_AT_ONCE = 200


async def numbers(nc: Client, stream: str) -> Counter[int]:
    """How often a hub's stream holds each number of the load."""
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
    rows = [json.loads(line) for line in lines_of(message)]
    # The agent's own readings, such as the time to the first loss, come in between.
    return [int(row["value"]) for row in rows if row.get("device") == DEVICE]
