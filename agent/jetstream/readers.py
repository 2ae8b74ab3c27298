"""The durable pull consumers through which other programs read the agent's streams. The agent creates them,
since a program that creates a consumer also chooses where it delivers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from agent.contract import USER_CONSUMERS
from agent.jetstream.client import JetStream

_UNACKNOWLEDGED: Final = 1_000
"""Messages that a reader may hold without an acknowledgement."""


async def keep_readers(js: JetStream, stream: str, names: Collection[str]) -> None:
    """Create the consumers of these names that do not exist, and delete the other consumers of users. Each
    begins with the oldest message. Raises `ApiError` or `UnavailableError`."""
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
