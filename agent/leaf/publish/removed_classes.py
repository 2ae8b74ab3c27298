"""Classes that the configuration had and has no more. Nothing carries their streams to the hub, and no
announcement or audit speaks of what came into them last, though it was acknowledged: so the agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from agent import contract
from agent.jetstream import JetStreamError
from agent.leaf.publish.stream_recovery import CurrentRecovery
from agent.leaf.state_file import StateFile

_ATTEMPTS: Final = 3
"""A server that the agent does not run may not let it ask."""
_AGAIN_SECONDS: Final = 1.0

log = structlog.get_logger("leaf")


class RemovedClasses:
    """Looks once in a run at the streams of the classes that are not `configured` any more."""

    def __init__(self, recovery: CurrentRecovery, state: StateFile, configured: Iterable[str]) -> None:
        self._recovery, self._state = recovery, state
        self._removed = state.current.removed_classes(configured)
        self.sentences: dict[str, str] = {}
        """By class, what the hub may lack of it and what to do."""

    async def run(self) -> None:
        """Say what the hub has not confirmed of each; returns once all are looked at."""
        for cls in self._removed:
            await self._look(cls)

    async def _look(self, cls: str) -> None:
        state = self._state.current
        stream, agreed = contract.leaf_stream(state.domain, cls), state.checkpoint.get(cls)
        confirmed = agreed.leaf_seq if agreed else 0
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                last = await (await self._recovery.get()).last_of_removed(cls, confirmed)
            except JetStreamError as error:
                reason = str(error)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if last is not None:
                self.sentences[cls] = (
                    f"the hub has confirmed {stream} up to {confirmed} of {last}, and class {cls!r} is not "
                    "configured: declare it again until 0 of it are not confirmed, then remove it"
                )
                log.error("removed class not confirmed", cls=cls, reason=self.sentences[cls])
            return
        log.warning("removed class not looked at", cls=cls, stream=stream, reason=reason)
