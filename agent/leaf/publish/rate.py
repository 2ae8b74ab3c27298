"""A limit on readings a second: pure, the caller brings the time."""

from __future__ import annotations


class RateLimit:
    """A bucket that holds what may come in one second. What is larger is let in when the bucket is full, and
    paid for afterwards. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._level = 0.0
        self._at = float("-inf")

    def limit(self, readings_per_second: float | None) -> None:
        """From now on no more than this; None lifts the limit."""
        self._rate = readings_per_second
        self._level, self._at = 0.0, float("-inf")

    def take(self, readings: int, now: float) -> float:
        """Take room for so many readings: 0 when there is, otherwise the seconds after which to ask again."""
        if self._rate is None:
            return 0.0
        # An infinite wait has filled it.
        filled = self._level + (now - self._at) * self._rate
        self._level, self._at = min(self._rate, filled), now
        wanted = min(float(readings), self._rate)
        if self._level < wanted:
            return (wanted - self._level) / self._rate
        self._level -= readings
        return 0.0
