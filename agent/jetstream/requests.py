"""One request over a connection of nats-py, in which no cancellation is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nats.aio.client import Client
from nats.aio.msg import Msg


async def request(
    nc: Client, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
) -> Msg:
    """The answer to one request; raises what nats-py does. A cancellation is never lost: `asyncio.wait_for`
    of Python 3.11, in the client, swallows one that comes together with the answer or the end of the
    connection, and a service that is cancelled once would go on for ever."""
    try:
        return await nc.request(
            subject, data, timeout=timeout, headers=None if headers is None else dict(headers)
        )
    finally:
        end_if_cancelled()


def end_if_cancelled() -> None:
    """Raise the cancellation of this task where it was swallowed."""
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError
