"""Trimming: a stream that fills up is purged of what the hub has confirmed, never beyond."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from agent.jetstream import JetStream, StreamInfo
from agent.metrics import Metrics
from agent.state import StateFile

TRIM_ABOVE: Final = 0.8

log = structlog.get_logger("link")


def is_crowded(info: StreamInfo, max_bytes: int) -> bool:
    """Whether a stream is so full that it is trimmed."""
    return info.bytes > TRIM_ABOVE * max_bytes


class Trimmer:
    """Purges streams. `allowed` says whether it may, `prepare` saves what only the purged messages tell,
    `trimmed(cls)` is told afterwards."""

    def __init__(
        self,
        state: StateFile,
        metrics: Metrics,
        *,
        allowed: Callable[[], bool],
        prepare: Callable[[], Awaitable[None]],
        trimmed: Callable[[str], None],
    ) -> None:
        self._state, self._metrics = state, metrics
        self._allowed, self._prepare, self._trimmed = allowed, prepare, trimmed

    async def trim(self, js: JetStream, cls: str, info: StreamInfo, confirmed: int) -> None:
        """Purge up to the confirmed message, which stays: it is where the next answer is compared. Raises
        `JetStreamError`."""
        if confirmed - 1 < info.first or not self._allowed():
            return
        # The last batch of a pull input goes with the rest: from here on only the state file has its
        # position, and the file of requests their keys. A disk that is full is no reason to keep what fills
        # it, and each of the two is written whatever became of the other.
        for save in (self._prepare, self._state.save):
            try:
                await save()
            except OSError as error:
                log.error("what is trimmed cannot be remembered on disk", error=str(error))
        purged = await js.purge(info.name, confirmed - 1)
        self._metrics.trimmed.labels(cls).inc(purged)
        self._trimmed(cls)
        log.info("trimmed what the hub has confirmed", **{"class": cls}, messages=purged, up_to=confirmed - 1)
