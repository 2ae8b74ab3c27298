"""Reads headers without payloads, and whole streams by direct get; maintains other programs' durable pull
consumers.

The agent creates these consumers, because a creator also chooses the deliver subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from agent.base.wait import timeout
from agent.contract import USER_CONSUMERS
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.info import StreamInfo, UnavailableError

_PULL = 1_000
_PROGRESS_SECONDS = 10.0
"""Timeout per message; a server busy with ten thousand leaves took two seconds, and a forbidden request gets
no answer.
"""


class StoredHeaders(Struct, frozen=True):
    """A stored message's headers."""

    seq: int
    time: float
    """Storage time in seconds since 1970 by the server."""
    headers: Mapping[str, str]
    subject: str = ""
    stored_ns: int = 0
    """The same in ns."""


class _Read(NamedTuple):
    """Results of one consumer."""

    taken: int
    """Received messages."""
    last: int
    """Last sequence."""
    left: int
    """Missing messages."""
    enough: bool
    """Whether `enough` stopped it."""


def ack_position(reply: str) -> tuple[int, int]:
    """Parse stream sequence and store time (ns) from a reply subject (server ADR-15). Raises `ValueError`."""
    tokens = reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) not in (9, 11, 12):
        raise ValueError(f"{reply!r} is not the reply subject of a consumer")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 2])


async def read_headers(
    nc: Client,
    js: JetStream,
    stream: str,
    start: Mapping[str, Any],
    take: Callable[[StoredHeaders], None],
    enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Pass all messages from `start` (deliver policy `all` or by sequence, with filter) to `take`; False if
    `enough` stopped.

    Raises `ApiError`, or `UnavailableError` if answers stop.
    """
    position = dict(start)
    moved = True
    while True:
        read = await _read(nc, js, stream, position, take, enough)
        if read.enough or not read.left:
            return not read.enough
        # A server that was stopped or starved ended pulls with `404 No Messages` while thousands
        # waited. A new consumer that begins after the last message shows whether any are left.
        if not read.taken and not moved:
            raise UnavailableError(
                f"reading {stream} stopped before its end: {read.left} messages do not arrive"
            )
        moved = read.taken > 0
        if moved:
            position |= {"deliver_policy": "by_start_sequence", "opt_start_seq": read.last + 1}


async def _read(
    nc: Client,
    js: JetStream,
    stream: str,
    position: Mapping[str, Any],
    take: Callable[[StoredHeaders], None],
    enough: Callable[[], bool],
) -> _Read:
    config = {
        "name": nc.new_inbox().rpartition(".")[2],
        "ack_policy": "none",
        "mem_storage": True,
        "headers_only": True,
        "inactive_threshold": 30_000_000_000,
        **position,
    }
    consumer = await js.create_consumer(stream, config)
    try:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer.name}"
        read = await _pull(nc, subject, consumer.pending, take, enough)
    except (TimeoutError, NatsError, OSError) as error:
        why = str(error) or "no answer"
        raise UnavailableError(f"reading {stream} stopped before its end: {why}") from None
    # Best effort: a consumer that is left behind goes by itself after `inactive_threshold`. It is left where
    # reading was cancelled or had no answer: an agent would wait for a server that answers no more.
    with contextlib.suppress(JetStreamError, NatsError, OSError):
        await js.delete_consumer(stream, consumer.name)
    return read


async def _pull(
    nc: Client, subject: str, pending: int, take: Callable[[StoredHeaders], None], enough: Callable[[], bool]
) -> _Read:
    """Pull `pending` messages in bounded steps, or fewer on a status. Raises `TimeoutError`."""
    taken = last = 0
    ended = False
    arrived = asyncio.Event()
    inbox = nc.new_inbox()

    async def receive(msg: Msg) -> None:
        nonlocal taken, last, ended
        arrived.set()
        if not msg.reply:
            ended = True
            return
        last, stored_ns = ack_position(msg.reply)
        taken += 1
        take(StoredHeaders(last, stored_ns / 1e9, msg.headers or {}, msg.subject, stored_ns))

    subscription = await nc.subscribe(inbox, cb=receive)
    try:
        while taken < pending and not ended:
            if enough():
                return _Read(taken, last, pending - taken, True)
            size = min(_PULL, pending - taken)
            end = taken + size
            await nc.publish(subject, json.dumps({"batch": size, "no_wait": True}).encode(), inbox)
            while taken < end and not ended:
                arrived.clear()
                async with timeout(_PROGRESS_SECONDS):
                    await arrived.wait()
        return _Read(taken, last, pending - taken, False)
    finally:
        with contextlib.suppress(NatsError, OSError):
            await subscription.unsubscribe()


_UNACKNOWLEDGED: Final = 1_000
"""Unacknowledged messages per reader."""


async def keep_readers(js: JetStream, stream: str, names: Collection[str]) -> None:
    """Create missing and delete other users' consumers, from the oldest message. Raises `ApiError` or
    `UnavailableError`.
    """
    present = [name for name in await js.consumer_names(stream) if name.startswith(USER_CONSUMERS)]
    for name in present:
        if name not in names:
            await js.delete_consumer(stream, name)
    for name in names:
        if name not in present:
            await js.create_consumer(stream, _reader(name))


def _reader(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "durable_name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "max_ack_pending": _UNACKNOWLEDGED,
    }


async def read_all(nc: Client, info: StreamInfo) -> dict[str, bytes]:
    """Return the newest message per subject by direct get. Raises `UnavailableError` if a lagging replica
    gives less.
    """
    if not info.messages:
        return {}
    found, last = await _get_directly(nc, info.name, {"seq": 1, "batch": info.messages + 1})
    if last < info.last:
        raise UnavailableError(f"{info.name} was read up to {last} of {info.last} only")
    return found


async def read_newest(nc: Client, stream: str, subjects: Sequence[str]) -> dict[str, bytes]:
    """Return the newest messages of up to 1,024 subjects from any replica. Raises `UnavailableError`."""
    return (await _get_directly(nc, stream, {"multi_last": subjects}))[0]


async def _get_directly(nc: Client, stream: str, question: Mapping[str, Any]) -> tuple[dict[str, bytes], int]:
    """Return a direct get's messages by subject, and the last sequence."""
    inbox, found, last = nc.new_inbox(), dict[str, bytes](), 0
    progress, ended = asyncio.Event(), asyncio.Event()

    async def take(msg: Msg) -> None:
        nonlocal last
        progress.set()
        headers = msg.headers or {}
        if "Status" in headers:
            ended.set()
            return
        found[headers["Nats-Subject"]] = msg.data
        last = int(headers["Nats-Sequence"])

    try:
        subscription = await nc.subscribe(inbox, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        try:
            await nc.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(question).encode(), reply=inbox)
            while not ended.is_set():
                progress.clear()
                async with timeout(_PROGRESS_SECONDS):
                    await progress.wait()
        finally:
            if not nc.is_closed:
                await subscription.unsubscribe()
    except (NatsError, OSError, TimeoutError) as error:
        raise UnavailableError(f"{stream} cannot be read at once: {error or 'no answer'}") from error
    return found, last
