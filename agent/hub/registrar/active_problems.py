"""Problems of the registrar, told once when they begin and once when they end."""

from __future__ import annotations

from typing import Final

import structlog

_LIMIT: Final = 10_000

log = structlog.get_logger("registrar")


class ActiveProblems:
    """What is wrong now, by a key a problem."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def begin(self, key: str, sentence: str, *, hub: bool = False) -> None:
        """Something is wrong; said unless it was said with this sentence. Of leaves a bounded number is kept;
        what is wrong with the `hub` itself always is."""
        if self._open.get(key) == sentence:
            return
        if len(self._open) >= _LIMIT and key not in self._open and not hub:
            return
        self._open[key] = sentence
        log.warning(sentence, about=key)

    def end(self, key: str, sentence: str) -> None:
        """It is well again; said if it was not."""
        if self._open.pop(key, None) is not None:
            log.info(sentence, about=key)

    def of(self, key: str) -> str | None:
        """The sentence of an open problem."""
        return self._open.get(key)
