"""Logging: structlog to standard error, as JSON lines or for a terminal. The server's and libraries' own
logging goes the same way."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from agent.config import Log


def set_up(config: Log) -> None:
    """Log as configured; `auto` is the console's form on a terminal and JSON elsewhere."""
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[config.level.upper()]
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_named_print_logger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)


def _named_print_logger(*_names: str) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
