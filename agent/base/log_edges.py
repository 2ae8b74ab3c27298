"""Logging a state once when it begins and once when it ends, and a few reports a minute of what repeats."""

from __future__ import annotations

from typing import Any, Final

from structlog.typing import FilteringBoundLogger

_BURST: Final = 5
_SECONDS: Final = 60.0


class LogEdge:
    """A fault that is logged when it begins, when its facts change, and when it ends: as `over`, unless that
    is empty. `error` logs it as an error instead of a warning."""

    def __init__(self, log: FilteringBoundLogger, over: str = "", *, error: bool = False) -> None:
        self._warn = log.error if error else log.warning
        self._info = log.info
        self._over = over
        self._last: tuple[str, dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        """Whether the fault lasts."""
        return self._last is not None

    def begin(self, event: str, *, exc_info: BaseException | None = None, **facts: Any) -> None:
        """The fault is there; a traceback is logged with it and does not make it another fault."""
        if (event, facts) != self._last:
            self._last = (event, facts)
            self._warn(event, **facts, **({} if exc_info is None else {"exc_info": exc_info}))

    def end(self) -> None:
        """The fault is over."""
        if self._last is not None and self._over:
            self._info(self._over)
        self._last = None


class Sparse:
    """Lets through the first five reports of each minute. Its times are monotonic seconds from the caller."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._passed = 0
        self._held_back = 0

    def held_back(self, now: float) -> int | None:
        """None if this report is to be held back, else how many were since the last that was not."""
        if now - self._began >= _SECONDS:
            self._began, self._passed = now, 0
        if self._passed >= _BURST:
            self._held_back += 1
            return None
        self._passed += 1
        held_back, self._held_back = self._held_back, 0
        return held_back
