"""When a leaf announces itself: regularly, at once when something has changed, ever more rarely while nobody
answers, and what is known of the hub's silence or refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from agent.base.metrics import Metrics
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.link.announcer import Announcer, AnnounceResult
from agent.leaf.link.observation import LinkSeen
from agent.leaf.link.status import LinkStatusBoard

CROWDED_SECONDS: Final = 2.0
"""From announcement to announcement while a stream waits to be trimmed."""
_FIRST, _LONGEST = 0.05, 1.0

log = structlog.get_logger("link")


class AnnounceLoop:
    """Announces over the current connection. `take_in(js, announcer, said)` is told what came of each, and
    `away(js, error)` that the local server did not answer; `repairs` tells whether a new epoch is due.
    `refused` is the hub's sentence where it refused the newest announcement; `silent_since` when it was first
    asked in vain since its last answer, None while it answers."""

    def __init__(
        self,
        board: LinkStatusBoard,
        metrics: Metrics,
        link: Callable[[], LinkSeen],
        take_in: Callable[[JetStream, Announcer, AnnounceResult], Awaitable[None]],
        away: Callable[[JetStream, JetStreamError], None],
        repairs: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._board, self._metrics, self._link = board, metrics, link
        self._take_in, self._away, self._seconds = take_in, away, seconds
        self._repairs = repairs
        self._over: tuple[JetStream, Announcer] | None = None
        self._due = asyncio.Event()
        self._silence = ""
        self.refused: str | None = None
        self.silent_since: float | None = None

    def attach(self, js: JetStream, announcer: Announcer) -> None:
        """Announce over this connection, at once."""
        self._over = (js, announcer)
        self._due.set()

    def detach(self) -> None:
        """There is no connection to announce over."""
        self._over = None

    def ask_now(self) -> None:
        """Announce without waiting for the next turn."""
        self._due.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        failures = 0
        while True:
            self._due.clear()
            if self._over is not None:
                failures = 0 if await self._once(*self._over) else failures + 1
            if failures:
                await asyncio.sleep(min(_LONGEST, _FIRST * 2 ** min(failures - 1, 10)))
            await wait_for(self._due, self._pause())

    def _pause(self) -> float:
        if self.silent_since is not None:
            return _LONGEST
        crowded = any(one.crowded for one in self._board.classes.values())
        return CROWDED_SECONDS if crowded else self._seconds

    async def _once(self, js: JetStream, announcer: Announcer) -> bool:
        """Announce; whether the hub answered."""
        confirmed = {cls: one.confirmed for cls, one in self._board.classes.items()}
        try:
            said = await announcer.ask(confirmed, self._link(), repairs=self._repairs())
            if self._over is None or self._over[0] is not js:
                return True
            self._note(said)
            await self._take_in(js, announcer, said)
        except JetStreamError as error:
            self._away(js, error)
            return False
        return said.answer is not None

    def _note(self, said: AnnounceResult) -> None:
        self._metrics.linked.set(said.answer is not None)
        if said.answer is not None:
            self.silent_since, self._silence = None, ""
            self.refused = said.answer.refused
            return
        self.silent_since = self.silent_since or asyncio.get_running_loop().time()
        if said.silence != self._silence:
            log.debug("announced in vain", why=said.silence)
        self._silence = said.silence


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Return once an event is set, or after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
