"""The consumers through which others than the agent read its streams: durable ones that are pulled from. The
agent makes them, for whoever makes a consumer says where it delivers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from agent.contract import USER_CONSUMERS
from agent.jetstream.client import JetStream

_UNACKNOWLEDGED: Final = 1_000
"""Messages that a reader may hold without an acknowledgement."""


async def keep_readers(js: JetStream, stream: str, wanted: Collection[str]) -> None:
    """Make the consumers of these names, unless they are there, and delete those of users that are not
    wanted any more. Each begins with the oldest message. Raises `ApiError` or `UnavailableError`."""
    there = [name for name in await js.consumer_names(stream) if name.startswith(USER_CONSUMERS)]
    for name in there:
        if name not in wanted:
            await js.delete_consumer(stream, name)
    for name in wanted:
        if name not in there:
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
