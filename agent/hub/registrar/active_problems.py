"""Problems of the registrar, each logged once when it begins and once when it ends."""

from __future__ import annotations

from typing import Final

import structlog

_LIMIT: Final = 10_000

log = structlog.get_logger("registrar")


class ActiveProblems:
    """The problems of now by key, each a sentence."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def begin(self, key: str, sentence: str, *, hub: bool = False) -> None:
        """A problem is there; logged unless its sentence is the same. Of leaves a bounded number is
        kept, those of the `hub` itself always are."""
        if self._open.get(key) == sentence:
            return
        if len(self._open) >= _LIMIT and key not in self._open and not hub:
            return
        self._open[key] = sentence
        log.warning(sentence, about=key)

    def end(self, key: str, sentence: str) -> None:
        """The problem is over; logged if it was there."""
        if self._open.pop(key, None) is not None:
            log.info(sentence, about=key)

    def of(self, key: str) -> str | None:
        """The sentence of an open problem."""
        return self._open.get(key)

    def among(self, key: str) -> dict[str, str]:
        """The sentences of the open problems with such a key, by what stands for its `{}` at the end."""
        prefix = key.removesuffix("{}")
        return {
            name.removeprefix(prefix): words for name, words in self._open.items() if name.startswith(prefix)
        }
