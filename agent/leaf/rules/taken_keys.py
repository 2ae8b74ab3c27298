"""Keeps idempotency keys of aggregated requests. No I/O except clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.base.clock import ClockReader, Instant
from agent.base.wait import loop_time
from agent.contract import Request, parse_clock
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.publish.idempotency import KNOWN_SECONDS, Ages, key_reused, name_of
from agent.leaf.rules.record_log import KnownKey, WrittenAt

KEY_SECONDS: Final = 2 * KNOWN_SECONDS
"""Longer than the core knows a request whose rest may be stored later."""
MAX_KEYS: Final = 200_000


class TakenKeys:
    """Known keys for `KEY_SECONDS`, oldest first."""

    def __init__(self) -> None:
        self._clock = ClockReader()
        self._keys: dict[str, tuple[bytes, int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def now(self) -> WrittenAt:
        """Return this moment for records."""
        now = self._clock.look()
        return WrittenAt(now.wall, str(now.clock))

    def lines_of(self, request: Request) -> int | None:
        """Return a bitmap of a request's aggregated lines, or None. Raises `RefusedError` for
        other content.
        """
        self._expire()
        known = self._keys.get(name_of(request))
        if known is None:
            return None
        if known[0] != request.mark:
            raise key_reused(request)
        return known[1]

    def record(self, request: Request, bitmap: int, at: WrittenAt) -> KnownKey:
        """Return a request's record. Raises `RefusedError` at the limit."""
        self._expire()
        if len(self._keys) >= MAX_KEYS:
            text = f"{MAX_KEYS} idempotency keys of aggregated readings are known"
            raise RefusedError(RefusalReason.BUSY, text, 60.0)
        return KnownKey(name_of(request), request.mark, f"{bitmap:x}", KEY_SECONDS, at.wall, at.clock)

    def add(self, key: KnownKey, now: float) -> None:
        """Add a key whose record is on disk."""
        self._keys[key.name] = (key.mark, int(key.lines, 16), now + key.left)

    def records(self, at: WrittenAt) -> list[KnownKey]:
        """Return all known keys."""
        self._expire()
        now = loop_time()
        return [
            KnownKey(name, mark, f"{lines:x}", expires - now, at.wall, at.clock)
            for name, (mark, lines, expires) in self._keys.items()
        ]

    def load(self, keys: Iterable[KnownKey]) -> None:
        """Load earlier keys, oldest first."""
        known, now = list(keys), loop_time()
        self._keys.clear()
        for key, age in zip(known, self.ages(WrittenAt(key.wall, key.clock) for key in known), strict=True):
            if key.left > age:
                self.add(key, now - age)

    def ages(self, moments: Iterable[WrittenAt | None]) -> list[float]:
        """Return ages in seconds, oldest first; 0 if unknown."""
        ages, found = Ages(self._clock.look()), list[float]()
        for at in reversed(list(moments)):
            found.append(0.0 if at is None else ages.of(Instant(at.wall, parse_clock(at.clock))))
        return found[::-1]

    def _expire(self) -> None:
        now = loop_time()
        while self._keys:
            name, (_, _, expires) = next(iter(self._keys.items()))
            if expires > now:
                return
            del self._keys[name]
