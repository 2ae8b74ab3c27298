"""Logging by structlog to standard error, as JSON lines or for a terminal; the libraries' logging too."""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

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
        processors=[_drop_below, *shared, renderer],
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


def _drop_below(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    # Loggers that are made keep their class and its level, so the class lets all through.
    if _LEVELS[method.upper()] < _threshold:
        raise structlog.DropEvent
    return event


class _StandardError:
    """Standard error as it is when something is written: loggers are made once, and what runs a command
    within a program may replace it for as long as that takes."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


_STANDARD_ERROR: Final = cast(TextIO, _StandardError())


def _named_print_logger(*_names: str) -> structlog.PrintLogger:
    return structlog.PrintLogger(_STANDARD_ERROR)
