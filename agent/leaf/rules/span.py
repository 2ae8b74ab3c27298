"""Some readings of one series, and whether another one moved against any of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple


class LastSent(NamedTuple):
    """What was sent: its value (of a text only a digest), its `ts` in seconds since 1970, and when, in
    monotonic seconds."""

    value: float | bool | bytes
    ts: float
    at: float


def moved(last: LastSent, one: LastSent, width: float, after: float | None) -> bool:
    """Whether a reading moved against another one: by more than `width`, or where one of them is no number,
    at all; or by `after` seconds of its `ts` or of the agent's clock."""
    if after is not None and max(abs(one.ts - last.ts), one.at - last.at) >= after:
        return True
    old, new = last.value, one.value
    if isinstance(old, bool | bytes) or isinstance(new, bool | bytes):
        return type(old) is not type(new) or old != new
    return not abs(new - old) <= width


class Span:
    """How far these readings reach: the least and the greatest number, the values that are none, and the
    times. What it costs to compare with them does not grow with their number."""

    __slots__ = ("_at", "_high", "_low", "_others", "_ts_high", "_ts_low")

    def __init__(self, readings: Iterable[LastSent]) -> None:
        self._low, self._high = inf, -inf
        self._others: set[tuple[type, object]] = set()
        self._ts_low, self._ts_high, self._at = inf, -inf, inf
        for one in readings:
            self.add(one)

    def add(self, one: LastSent) -> None:
        """Reach to this one as well."""
        self._ts_low, self._ts_high = min(self._ts_low, one.ts), max(self._ts_high, one.ts)
        self._at = min(self._at, one.at)
        value = one.value
        if isinstance(value, bool | bytes):
            if len(self._others) < 2:
                self._others.add((type(value), value))
        else:
            self._low, self._high = min(self._low, value), max(self._high, value)

    def moved(self, one: LastSent, width: float, after: float | None) -> bool:
        """Whether a reading moved against any of these, as `moved` says."""
        if after is not None:
            apart = max(one.ts - self._ts_low, self._ts_high - one.ts, one.at - self._at)
            if apart >= after:
                return True
        value = one.value
        if isinstance(value, bool | bytes):
            return self._low != inf or not self._others <= {(type(value), value)}
        if self._others or self._low == inf:
            return bool(self._others)
        return not (abs(value - self._low) <= width and abs(value - self._high) <= width)
