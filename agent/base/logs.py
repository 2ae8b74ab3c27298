"""Logging by structlog to standard error, as JSON lines or for a terminal, the libraries' logging too; a
state logged once when it begins and once when it ends, a few reports a minute of what repeats; and text made
short, and safe for a terminal."""

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
    """Log from this level on as `json` or for the `console`; the form `auto` is the console's form on a
    terminal and JSON elsewhere."""
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
    """Log from this level on, also in loggers that exist already."""
    global _threshold
    _threshold = _LEVELS[level.upper()]


_WARNINGS: Final[dict[str, str]] = {}
_MOST_WARNINGS: Final = 1_000
_WARNING_LENGTH: Final = 500


def last_warning(input_name: str) -> str | None:
    """The newest warning or error that was logged of an input since the process began."""
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
    """Standard error as it is when something is written: loggers are made once, and what runs a command
    within a program may replace it for as long as that takes. What it does not take, on a full disk or in a
    pipe that nobody reads any more, is left out: no line of a log may end what it is about."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


_STANDARD_ERROR: Final = cast(TextIO, _StandardError())


def end() -> None:
    """Leave out what standard error has not taken. The interpreter would try once more at its end, and change
    the process's exit code to 120."""
    try:
        sys.stderr.flush()
    except OSError:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives


def _named_print_logger(*_names: str) -> structlog.PrintLogger:
    return structlog.PrintLogger(_STANDARD_ERROR)


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

    def report(self, say: Callable[..., Any], event: str, **facts: Any) -> None:
        """Log by `say`, a method of a logger, unless this report is to be held back."""
        held_back = self.held_back(time.monotonic())
        if held_back is not None:
            say(event, **facts, not_reported_before=held_back)


_CONTROL: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters that JSON may hold as they are: U+007F, and U+0080 to U+009F in UTF-8."""


def listed(items: Sequence[str], most: int = 5, *, by: str = ", ", noun: str = "") -> str:
    """The first `most` items in a row and how many are left: `a, b and 3 more`, with a noun `a, b and 3 more
    ranges`."""
    left = len(items) - most
    return by.join(items[:most]) + (f" and {left} more{noun and f' {noun}'}" if left > 0 else "")


NO_THREAT: Final = 3650 * 86_400.0
"""Seconds, ten years, from which on a time until something goes wrong threatens nothing; also infinity."""


def time_text(seconds: float, small: str = " seconds") -> str:
    """A time in its largest fitting unit, for people; `small` is the unit below two minutes."""
    for size, unit in ((86_400, " days"), (3_600, " hours"), (60, " minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}{small}"


def harmless(lines: bytes) -> bytes:
    """JSON lines that mean the same and hold no control character that a terminal would obey."""
    return _CONTROL.sub(lambda match: b"\\u00%02x" % match[0][-1], lines)


def shown(text: str) -> str:
    """Text for a terminal: a character that is not printable becomes an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
