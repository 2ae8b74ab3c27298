"""Which push requests are known by their idempotency key: pure but for the clock that the caller brings.

A key is in flight until its batch is settled, then known for ten minutes. Each class knows its own: the
readings of one request may go to several, and some of them may be stored when others are not. The number of
keys is bounded; at the bound a new key is refused rather than an old one forgotten, for forgetting would
store a repeat twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

from agent.contract import Request
from agent.intake import Reason, RefusedError

KNOWN_SECONDS = 600.0
MAX_KEYS = 500_000

Settled = asyncio.Future[Exception | None]

Key = tuple[str, str]
"""Class and idempotency key."""


class RequestLog:
    """Keys in flight and keys stored. Times are monotonic seconds."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._in_flight: dict[Key, tuple[int, Settled]] = {}
        self._promised: set[Key] = set()
        self._stored: dict[str, dict[str, int]] = {}
        self._expiry: deque[tuple[float, str, str]] = deque()
        self._doubtful: set[Key] = set()

    def claim(self, cls: str, request: Request, settled: Settled, now: float) -> Settled | None:
        """Claim a key of a class for a chunk whose outcome is `settled`. Returns None when the key is new;
        the outcome to wait for when it is in flight already; a finished one when it is stored. Raises
        `RefusedError` when the key came with another body, or when too many keys are known."""
        self._expire(now)
        key = (cls, request.key)
        running = self._in_flight.get(key)
        crc = self._stored_crc(*key) if running is None else running[0]
        if crc is not None and crc != request.crc:
            raise RefusedError(
                Reason.KEY_REUSED,
                f"Idempotency-Key {request.key} was used within ten minutes for another body; use a new key",
            )
        if running is not None:
            return running[1]
        if crc is not None:
            settled.set_result(None)
            return settled
        if len(self._expiry) + len(self._in_flight) >= self._max_keys:
            raise RefusedError(
                Reason.BUSY, f"{self._max_keys} idempotency keys are known, no more can be remembered", 60.0
            )
        self._in_flight[key] = (request.crc, settled)
        return None

    def promise(self, cls: str, request: Request) -> None:
        """What was claimed under the key is acknowledged as accepted, and not refused any more."""
        self._promised.add((cls, request.key))

    def is_promised(self, cls: str, request: Request) -> bool:
        """Whether what is in flight under the key is acknowledged as accepted."""
        return (cls, request.key) in self._promised

    def store(self, cls: str, request: Request, now: float) -> None:
        """What of the request is of this class is stored."""
        self._in_flight.pop((cls, request.key), None)
        self._promised.discard((cls, request.key))
        if self._stored_crc(cls, request.key) is None:
            self._expiry.append((now + KNOWN_SECONDS, cls, request.key))
        self._stored.setdefault(cls, {})[request.key] = request.crc

    def forget(self, cls: str, request: Request, settled: Settled) -> None:
        """The request was refused: its key is free again, if it was `settled` that claimed it."""
        running = self._in_flight.get((cls, request.key))
        if running is not None and running[1] is settled:
            del self._in_flight[cls, request.key]
            self._promised.discard((cls, request.key))

    def doubt(self, cls: str) -> None:
        """What of a class is known as stored was so in a store that was lost or put back."""
        self._doubtful.update((cls, key) for key in self._stored.get(cls, ()))

    def is_doubtful(self, cls: str, request: Request) -> bool:
        """Whether a stored request may be stored no more."""
        return (cls, request.key) in self._doubtful

    def known(self, now: float) -> dict[Key, tuple[int, float]]:
        """The keys stored, each with its CRC and the seconds for which it stays known."""
        self._expire(now)
        return {(cls, key): (self._stored[cls][key], expires - now) for expires, cls, key in self._expiry}

    def count(self, now: float) -> int:
        """How many keys are known."""
        self._expire(now)
        return len(self._expiry) + len(self._in_flight)

    def _stored_crc(self, cls: str, key: str) -> int | None:
        return self._stored.get(cls, {}).get(key)

    def _expire(self, now: float) -> None:
        while self._expiry and self._expiry[0][0] <= now:
            _, cls, key = self._expiry.popleft()
            del self._stored[cls][key]
            self._doubtful.discard((cls, key))
