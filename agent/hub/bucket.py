"""What writes under the lease into the fleet's bucket rest on: the condition, and room for the lease itself.

A bucket on several servers that is full refuses each message, also one that takes another's place (seen on
nats-server 2.15.1): then the lease could not be renewed, and no agent would lead. So records stop before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_fixed

from agent.contract import FLEET_BUCKET
from agent.jetstream import ApiError, JetStream
from agent.jetstream.info import WRITE_IN_FLIGHT, PubAck

BUCKET: Final = f"KV_{FLEET_BUCKET}"
RESERVE: Final = 2**20
"""Bytes that records leave free; a lease takes a few hundred."""
_STREAM_FULL: Final = 10077
_CLEARED: Final = 0.005
_CLEARED_SECONDS: Final = 1.0
_HEAD_BYTES: Final = 512
"""What the server stores of a message besides its subject and data, at most."""


class BucketRoom:
    """How much more may be stored. The bucket has one writer, which counts what it stores, as if nothing were
    replaced, and looks again where that might be too much."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._left = 0

    async def take(self, subject: str, data: bytes) -> None:
        """Take room for a record. Raises `ApiError` where there is none, or `UnavailableError`."""
        size = len(subject) + len(data) + _HEAD_BYTES
        if self._left < size:
            info = await self._js.stream_info(BUCKET)
            self._left = int(info.config["max_bytes"]) - info.bytes - RESERVE
        if self._left < size:
            words = f"maximum bytes exceeded: the bucket {BUCKET} is full; forget leaves that are gone"
            raise ApiError(503, _STREAM_FULL, words, subject)
        self._left -= size


async def in_turn(store: Callable[[], Awaitable[PubAck]]) -> PubAck:
    """Store what is conditional. The server refuses a second message under one condition while it clears up
    after the first, although that is acknowledged: then it has compared nothing, and is asked again."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(_is_in_flight),
        wait=wait_fixed(_CLEARED),
        stop=stop_after_delay(_CLEARED_SECONDS),
        reraise=True,
    ):
        with attempt:
            return await store()
    raise AssertionError


def _is_in_flight(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.err_code == WRITE_IN_FLIGHT
