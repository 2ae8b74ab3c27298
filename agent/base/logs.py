"""Logs by structlog to standard error as JSON or console text, with the libraries' logs.

`LogEdge` logs a fault at its start and end, `Sparse` limits repeats; further functions make text short and
safe.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_LEVELS = logging.getLevelNamesMapping()
_threshold = logging.INFO


def set_up(level: str, form: str) -> None:
    """Log from this level as `json` or `console`; `auto` is console on a terminal."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    set_level(level)
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[_remember_warning, _drop_below, *shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=_named_print_logger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(_threshold, logging.WARNING), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """Change the level, also of existing loggers."""
    global _threshold
    _threshold = _LEVELS[level.upper()]


_WARNINGS: Final[dict[str, str]] = {}
_MOST_WARNINGS: Final = 1_000
_WARNING_LENGTH: Final = 500


def last_warning(input_name: str) -> str | None:
    """Return an input's last warning or error of this process."""
    return _WARNINGS.get(input_name)


def _remember_warning(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    name = event.get("input")
    if name is not None and _LEVELS[method.upper()] >= logging.WARNING:
        facts = [str(event[key]) for key in ("error", "reason") if key in event]
        if name in _WARNINGS or len(_WARNINGS) < _MOST_WARNINGS:
            _WARNINGS[name] = ": ".join([str(event["event"]), *facts])[:_WARNING_LENGTH]
    return event


def _drop_below(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    # Loggers that are made keep their class and its level, so the class lets all through.
    if _LEVELS[method.upper()] < _threshold:
        raise structlog.DropEvent
    return event


class _StandardError:
    """The current standard error, which may be replaced while commands run. Drops text that it can't take
    (full disk, closed pipe).
    """

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


_STANDARD_ERROR: Final = cast(TextIO, _StandardError())


def end() -> None:
    """Drop unwritten output; otherwise the interpreter exits with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives


def _named_print_logger(*_names: str) -> structlog.PrintLogger:
    return structlog.PrintLogger(_STANDARD_ERROR)


_BURST: Final = 5
_SECONDS: Final = 60.0


class LogEdge:
    """Logs a fault at its start, at changes, and at its end as `over` unless "". `error` selects
    the level.
    """

    def __init__(self, log: FilteringBoundLogger, over: str = "", *, error: bool = False) -> None:
        self._warn = log.error if error else log.warning
        self._info = log.info
        self._over = over
        self._last: tuple[str, dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        """Whether the fault lasts."""
        return self._last is not None

    def begin(self, event: str, *, exc_info: BaseException | None = None, **facts: Any) -> None:
        """Start or update the fault; a traceback does not make it a new one."""
        if (event, facts) != self._last:
            self._last = (event, facts)
            self._warn(event, **facts, **({} if exc_info is None else {"exc_info": exc_info}))

    def end(self) -> None:
        if self._last is not None and self._over:
            self._info(self._over)
        self._last = None


class Sparse:
    """Admits five reports a minute. Monotonic seconds from the caller."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._passed = 0
        self._held_back = 0

    def held_back(self, now: float) -> int | None:
        """Return None to hold back this report, else how many were held back since the last."""
        if now - self._began >= _SECONDS:
            self._began, self._passed = now, 0
        if self._passed >= _BURST:
            self._held_back += 1
            return None
        self._passed += 1
        held_back, self._held_back = self._held_back, 0
        return held_back

    def report(self, say: Callable[..., Any], event: str, **facts: Any) -> None:
        """Log by `say` unless held back."""
        held_back = self.held_back(time.monotonic())
        if held_back is not None:
            say(event, **facts, not_reported_before=held_back)


_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters that JSON may contain: U+007F, and U+0080 to U+009F in UTF-8."""


def listed(items: Sequence[str], most: int = 5, *, by: str = ", ", noun: str = "") -> str:
    """List the first `most` items and count the rest: `a, b and 3 more ranges`."""
    left = len(items) - most
    return by.join(items[:most]) + (f" and {left} more{noun and f' {noun}'}" if left > 0 else "")


NO_THREAT: Final = 3650 * 86_400.0
"""Seconds (ten years) from which a time to failure means none; also infinity."""


def time_text(seconds: float, small: str = " seconds") -> str:
    """Format a duration in its largest unit; `small` is the unit below two minutes."""
    for size, unit in ((86_400, " days"), (3_600, " hours"), (60, " minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}{small}"


def harmless(lines: bytes) -> bytes:
    """Escape terminal control characters in JSON lines."""
    return _CONTROL.sub(lambda match: b"\\u00%02x" % match[0][-1], lines)


def shown(text: str) -> str:
    """Escape nonprintable characters."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
