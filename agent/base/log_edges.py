"""Saying what is wrong without saying it over and over."""

from __future__ import annotations

from typing import Final

from structlog.typing import FilteringBoundLogger

_BURST: Final = 5
_SECONDS: Final = 60.0


class LogEdge:
    """A state that is reported when it begins, when what is said of it changes, and when it is over."""

    def __init__(self, log: FilteringBoundLogger, over: str) -> None:
        self._log = log
        self._over = over
        self._text: str | None = None

    def begin(self, text: str) -> None:
        """It is wrong, and this is what is wrong."""
        if text != self._text:
            self._log.warning(text)
        self._text = text

    def end(self) -> None:
        """It is well."""
        if self._text is not None:
            self._log.info(self._over)
        self._text = None


class Sparse:
    """Lets through the first few reports of each minute. Time is monotonic seconds that the caller brings."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._passed = 0
        self._held_back = 0

    def held_back(self, now: float) -> int | None:
        """None when this report is one too many, otherwise how many were held back since the last that was
        not."""
        if now - self._began >= _SECONDS:
            self._began, self._passed = now, 0
        if self._passed >= _BURST:
            self._held_back += 1
            return None
        self._passed += 1
        held_back, self._held_back = self._held_back, 0
        return held_back
