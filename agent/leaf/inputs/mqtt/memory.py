"""Remembers filters that the broker's session may have, so that removed ones are unsubscribed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from agent.base.files import write_private


class FilterMemory:
    """The memory of one input in a file, or none."""

    def __init__(self, path: Path | None, log: FilteringBoundLogger) -> None:
        self._filters, self._log = path, log

    def earlier(self) -> list[str]:
        """Return the filters that the session may have."""
        if self._filters is None:
            return []
        try:
            return self._filters.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def note(self, filters: Sequence[str]) -> None:
        """Store the filters that the session may have."""
        if self._filters is None or list(filters) == self.earlier():
            return
        try:
            self._filters.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._filters, "".join(f"{filter_}\n" for filter_ in filters).encode())
        except OSError as error:
            self._log.warning("filters not remembered", reason=str(error))
