"""The idempotency keys of requests whose lines were taken into windows. No I/O but the machine's clocks."""

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
"""Longer than the core knows the rest of a request, which may be stored that much later."""
MAX_KEYS: Final = 200_000


class TakenKeys:
    """The keys that are known, each for `KEY_SECONDS`, the oldest first."""

    def __init__(self) -> None:
        self._clock = ClockReader()
        self._keys: dict[str, tuple[bytes, int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def now(self) -> WrittenAt:
        """This moment, as records carry it."""
        now = self._clock.look()
        return WrittenAt(now.wall, str(now.clock))

    def lines_of(self, request: Request) -> int | None:
        """The lines of a request that were taken in, as a bitmap; None where it is not known. Raises
        `RefusedError` when its key came with another content."""
        self._expire()
        known = self._keys.get(name_of(request))
        if known is None:
            return None
        if known[0] != request.mark:
            raise key_reused(request)
        return known[1]

    def record(self, request: Request, bitmap: int, at: WrittenAt) -> KnownKey:
        """The record of a request of which these lines are taken in. Raises `RefusedError` where too many
        are known."""
        self._expire()
        if len(self._keys) >= MAX_KEYS:
            text = f"{MAX_KEYS} idempotency keys of aggregated readings are known"
            raise RefusedError(RefusalReason.BUSY, text, 60.0)
        return KnownKey(name_of(request), request.mark, f"{bitmap:x}", KEY_SECONDS, at.wall, at.clock)

    def add(self, key: KnownKey, now: float) -> None:
        """Its record is on disk."""
        self._keys[key.name] = (key.mark, int(key.lines, 16), now + key.left)

    def records(self, at: WrittenAt) -> list[KnownKey]:
        """All that are known, as of now."""
        self._expire()
        now = loop_time()
        return [
            KnownKey(name, mark, f"{lines:x}", expires - now, at.wall, at.clock)
            for name, (mark, lines, expires) in self._keys.items()
        ]

    def load(self, keys: Iterable[KnownKey]) -> None:
        """These were written before, the oldest first."""
        known, now = list(keys), loop_time()
        self._keys.clear()
        for key, age in zip(known, self.ages(WrittenAt(key.wall, key.clock) for key in known), strict=True):
            if key.left > age:
                self.add(key, now - age)

    def ages(self, moments: Iterable[WrittenAt | None]) -> list[float]:
        """How many seconds ago each of these was, the oldest first; 0 where that was not written."""
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
