"""Reads a whole stream in one request (direct get, in a batch)."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from agent.jetstream.info import StreamInfo, UnavailableError

_ANSWER_SECONDS = 2.0
"""Until the first message; a server that does not allow the request says nothing."""
_PROGRESS_SECONDS = 10.0
_END = "204"


async def read_all(nc: Client, info: StreamInfo) -> dict[str, bytes]:
    """The newest message of every subject of a stream that allows direct get. Raises `UnavailableError` if
    the server gives less than `info` tells, as one of a cluster may that lags behind."""
    if not info.messages:
        return {}
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
            request = b'{"seq":1,"batch":%d}' % (info.messages + 1)
            await nc.publish(f"$JS.API.DIRECT.GET.{info.name}", request, reply=inbox)
            seconds = _ANSWER_SECONDS
            while not ended.is_set():
                progress.clear()
                async with asyncio.timeout(seconds):
                    await progress.wait()
                seconds = _PROGRESS_SECONDS
        finally:
            if not nc.is_closed:
                await subscription.unsubscribe()
    except (NatsError, OSError, TimeoutError) as error:
        raise UnavailableError(f"{info.name} cannot be read at once: {error or 'no answer'}") from error
    if last < info.last:
        raise UnavailableError(f"{info.name} was read up to {last} of {info.last} only")
    return found
