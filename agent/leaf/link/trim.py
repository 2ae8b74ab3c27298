"""Trimming: a stream that fills up is purged of what the hub has confirmed, never beyond."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from agent.base.metrics import Metrics
from agent.jetstream import JetStream, StreamInfo
from agent.leaf.state import StateFile

TRIM_ABOVE: Final = 0.8

log = structlog.get_logger("link")


def is_crowded(info: StreamInfo, max_bytes: int) -> bool:
    """Whether a stream is so full that it is trimmed."""
    return info.bytes > TRIM_ABOVE * max_bytes


class Trimmer:
    """Purges streams. `allowed` says whether it may, `prepare` saves what only the purged messages tell,
    `trimmed(cls, first, last)` is told afterwards which sequences are gone."""

    def __init__(
        self,
        state: StateFile,
        metrics: Metrics,
        *,
        allowed: Callable[[], bool],
        prepare: Callable[[], Awaitable[None]],
        trimmed: Callable[[str, int, int], None],
    ) -> None:
        self._state, self._metrics = state, metrics
        self._allowed, self._prepare, self._trimmed = allowed, prepare, trimmed
        self._remembered: dict[str, int] = {}

    async def trim(self, js: JetStream, cls: str, info: StreamInfo, confirmed: int) -> None:
        """Purge up to the confirmed message, which stays: it is where the next answer is compared. Raises
        `JetStreamError`."""
        if confirmed - 1 < info.first or not self._allowed():
            return
        # The last batch of a pull input goes with the rest: from here on only the state file and the file of
        # positions have its position, and the file of requests their keys. On a full disk only what is
        # remembered there already may go, which frees the room to remember more.
        try:
            await self._prepare()
            await self._state.save()
            await self._state.save_positions()
            self._remembered[cls] = info.last
        except OSError as error:
            log.error("what is to be trimmed cannot be remembered on disk", error=str(error))
        up_to = min(confirmed - 1, self._remembered.get(cls, 0))
        if up_to < info.first:
            return
        purged = await js.purge(info.name, up_to)
        self._metrics.trimmed.labels(cls).inc(purged)
        self._trimmed(cls, info.first, up_to)
        log.info("trimmed what the hub has confirmed", **{"class": cls}, messages=purged, up_to=up_to)
