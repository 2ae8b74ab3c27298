"""Reports streams of removed classes that may hold readings missing at the hub; no link or audit
covers them.
"""

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
"""First and longest delay after a failed check."""
_CHECK_SECONDS: Final = 3600.0
"""Interval; other programs may still publish to the stream."""

log = structlog.get_logger("leaf")


class RemovedClass(TypedDict):
    """The shown state of a class."""

    checked: bool
    """True if the hub may lack readings, False if the stream was unreadable."""
    sentence: str


class RemovedClasses:
    """Checks streams of classes not in `configured`."""

    def __init__(self, recovery: CurrentRecovery, state: StateFile, configured: Iterable[str]) -> None:
        self._recovery, self._state = recovery, state
        current = state.current
        self._removed = current.removed_classes(configured)
        current.unconfirmed = {cls: seq for cls, seq in current.unconfirmed.items() if cls in self._removed}
        self.rows: dict[str, RemovedClass] = {}
        """By class, without fully confirmed ones."""

    async def run(self) -> None:
        """Check each class hourly, sooner after a failure. Returns if there are none."""
        backoff = Backoff(_AGAIN_SECONDS, _LONGEST_SECONDS)
        while self._removed:
            if all([await self._check(cls) for cls in self._removed]):
                backoff.reset()
                await asyncio.sleep(_CHECK_SECONDS)
            else:
                await asyncio.sleep(backoff.next())

    async def _check(self, cls: str) -> bool:
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
