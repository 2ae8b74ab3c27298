"""Classes that the configuration had and has no more. Nothing carries their streams to the hub, and no
announcement or audit speaks of what came into them last, though it was acknowledged: so the agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, TypedDict

import structlog

from agent import contract
from agent.base.wait import Backoff
from agent.jetstream import JetStreamError
from agent.leaf.publish.stream_recovery import CurrentRecovery
from agent.leaf.state_file import StateFile

_AGAIN_SECONDS, _LONGEST_SECONDS = 1.0, 300.0
"""The first and the longest delay after a class that could not be checked."""
_CHECK_SECONDS: Final = 3600.0
"""Such a stream keeps its subjects: a program with rights of its own may publish there at any time."""

log = structlog.get_logger("leaf")


class RemovedClass(TypedDict):
    """What is shown of a class."""

    checked: bool
    """True where the hub may lack readings, False where the agent could not read the stream."""
    sentence: str


class RemovedClasses:
    """Checks the streams of the classes that are not `configured` any more."""

    def __init__(self, recovery: CurrentRecovery, state: StateFile, configured: Iterable[str]) -> None:
        self._recovery, self._state = recovery, state
        current = state.current
        self._removed = current.removed_classes(configured)
        current.unconfirmed = {cls: seq for cls, seq in current.unconfirmed.items() if cls in self._removed}
        self.rows: dict[str, RemovedClass] = {}
        """By class, without those of which the hub has confirmed everything."""

    async def run(self) -> None:
        """Check each class each hour, and sooner after one could not be checked. Returns if there is none."""
        backoff = Backoff(_AGAIN_SECONDS, _LONGEST_SECONDS)
        while self._removed:
            if all([await self._check(cls) for cls in self._removed]):
                backoff.reset()
                await asyncio.sleep(_CHECK_SECONDS)
            else:
                await asyncio.sleep(backoff.next())

    async def _check(self, cls: str) -> bool:
        """Whether the class could be checked."""
        state = self._state.current
        stream, agreed = contract.leaf_stream(state.domain, cls), state.checkpoint.get(cls)
        confirmed = agreed.leaf_seq if agreed else 0
        try:
            newest = await (await self._recovery.get()).newest_reading(cls)
        except JetStreamError as error:
            if (shown := self.rows.get(cls)) is None or not shown["checked"]:
                self._show(
                    cls,
                    f"what the hub may lack of {stream} is not checked: {error}; class {cls!r} is not "
                    "configured, and a server of your own has to let the agent ask "
                    f"$JS.API.STREAM.MSG.GET.{stream}",
                    checked=False,
                )
            return False
        noted = state.newest_reading(cls)
        if noted > confirmed and (newest is None or 0 < newest < noted):
            self._show(
                cls,
                f"the store of {stream} is lost or restored, the hub has confirmed {confirmed} of {noted}, "
                f"and class {cls!r} is not configured: declare it again, so that the audit names what is "
                "lost, then remove it",
                checked=True,
            )
        elif newest is not None and newest > confirmed:
            state.unconfirmed[cls] = newest
            self._state.mark()
            self._show(
                cls,
                f"the hub has confirmed {stream} up to {confirmed} of {newest}, and class {cls!r} is not "
                "configured: declare it again until 0 of it are not confirmed, then remove it",
                checked=True,
            )
        else:
            self.rows.pop(cls, None)
            if state.unconfirmed.pop(cls, None) is not None:
                self._state.mark()
        return True

    def _show(self, cls: str, sentence: str, *, checked: bool) -> None:
        row = RemovedClass(checked=checked, sentence=sentence)
        if self.rows.get(cls) == row:
            return
        self.rows[cls] = row
        if checked:
            log.error("removed class not confirmed", cls=cls, reason=sentence)
        else:
            log.warning("removed class not checked", cls=cls, reason=sentence)
