"""Which push requests are known by their idempotency key: pure but for the clock that the caller brings.

A key is in flight until its batch is settled, then known for ten minutes. The number of keys is bounded; at
the bound a new key is refused rather than an old one forgotten, for forgetting would store a repeat twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

from agent.contract import Request
from agent.intake import Reason, RefusedError

KNOWN_SECONDS = 600.0
MAX_KEYS = 500_000

Settled = asyncio.Future[Exception | None]


class RequestLog:
    """Keys in flight and keys stored. Times are monotonic seconds."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._in_flight: dict[str, tuple[int, Settled]] = {}
        self._stored: dict[str, int] = {}
        self._expiry: deque[tuple[float, str]] = deque()
        self._doubtful: set[str] = set()

    def claim(self, request: Request, settled: Settled, now: float) -> Settled | None:
        """Claim a key for a chunk whose outcome is `settled`. Returns None when the key is new; the outcome
        to wait for when it is in flight already; a finished one when it is stored. Raises `RefusedError` when
        the key came with another body, or when too many keys are known."""
        self._expire(now)
        running = self._in_flight.get(request.key)
        crc = self._stored.get(request.key) if running is None else running[0]
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
        if len(self._stored) + len(self._in_flight) >= self._max_keys:
            raise RefusedError(
                Reason.BUSY, f"{self._max_keys} idempotency keys are known, no more can be remembered", 60.0
            )
        self._in_flight[request.key] = (request.crc, settled)
        return None

    def store(self, request: Request, now: float) -> None:
        """The request is stored."""
        self._in_flight.pop(request.key, None)
        if request.key not in self._stored:
            self._expiry.append((now + KNOWN_SECONDS, request.key))
        self._stored[request.key] = request.crc

    def forget(self, request: Request, settled: Settled) -> None:
        """The request was refused: its key is free again, if it was `settled` that claimed it."""
        running = self._in_flight.get(request.key)
        if running is not None and running[1] is settled:
            del self._in_flight[request.key]

    def doubt(self) -> None:
        """What is known as stored was so in a store that was lost or put back."""
        self._doubtful = set(self._stored)

    def is_doubtful(self, request: Request) -> bool:
        """Whether a stored request may be stored no more."""
        return request.key in self._doubtful

    def known(self, now: float) -> dict[str, tuple[int, float]]:
        """The keys stored, each with its CRC and the seconds for which it stays known."""
        self._expire(now)
        return {key: (self._stored[key], expires - now) for expires, key in self._expiry}

    def count(self, now: float) -> int:
        """How many keys are known."""
        self._expire(now)
        return len(self._stored) + len(self._in_flight)

    def _expire(self, now: float) -> None:
        while self._expiry and self._expiry[0][0] <= now:
            key = self._expiry.popleft()[1]
            del self._stored[key]
            self._doubtful.discard(key)
