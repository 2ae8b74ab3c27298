"""Lets inputs of level `hub` wait until the hub holds what is stored here.

It knows sequences and no connection: others report what was stored, up to where the hub holds everything, and
when the local store was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from agent.leaf.intake import NotAtHubError

_KNOWN_IDS: Final = 1_000


class HubAckWaiters:
    """The waits of all classes. Those that wait for one sequence share it; nothing is kept of a wait that was
    given up. `sentence(cls)` says how the link of a class is. `wanted` is set while somebody waits."""

    def __init__(self, sentence: Callable[[str], str]) -> None:
        self._sentence = sentence
        self._stored: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._ids: dict[str, dict[int, str]] = {}
        self._waits: dict[str, dict[int, asyncio.Future[NotAtHubError | None]]] = {}
        self._waiting: dict[asyncio.Future[NotAtHubError | None], int] = {}
        self._stopping = False
        self.wanted = asyncio.Event()

    async def wait(self, cls: str, deadline: float) -> None:
        """Return once the hub holds all that is stored of a class now. Raises `NotAtHubError` when that is
        not so by the deadline (monotonic seconds), when the agent stops, or when the store is lost."""
        seq = self._stored.get(cls, 0)
        if seq <= self._reached.get(cls, 0):
            return
        if self._stopping:
            raise self._not_yet(cls, "the agent is stopping")
        waits = self._waits.setdefault(cls, {})
        outcome = waits.get(seq)
        if outcome is None:
            outcome = waits[seq] = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = self._waiting.get(outcome, 0) + 1
        self.wanted.set()
        try:
            async with asyncio.timeout_at(deadline):
                error = await asyncio.shield(outcome)
        except TimeoutError:
            error = self._not_yet(cls, self._sentence(cls))
        finally:
            self._leave(cls, seq, outcome)
        if error is not None:
            raise error.with_traceback(None)

    def stored(self, cls: str, seq: int, message_id: str) -> None:
        """A batch was stored."""
        self._stored[cls] = max(self._stored.get(cls, 0), seq)
        ids = self._ids.setdefault(cls, {})
        if len(ids) >= _KNOWN_IDS:
            del ids[next(iter(ids))]
        ids[seq] = message_id

    def began(self, cls: str, last: int) -> None:
        """There is a connection, and this is the last sequence of a class's stream."""
        self._stored[cls] = min(self._stored.get(cls, last), last)

    def id_at(self, cls: str, seq: int) -> str | None:
        """The id of the batch that was stored at a sequence, None where it is not known any more."""
        return self._ids.get(cls, {}).get(seq)

    def classes(self) -> list[str]:
        """The classes for which somebody waits."""
        return [cls for cls, waits in self._waits.items() if waits]

    def reached(self, cls: str, seq: int) -> bool:
        """The hub holds all of a class up to a sequence; whether somebody had waited for that."""
        self._reached[cls] = seq
        done = [reached_seq for reached_seq in self._waits.get(cls, ()) if reached_seq <= seq]
        for reached_seq in done:
            self._finish(cls, reached_seq, None)
        return bool(done)

    def lost(self, cls: str) -> None:
        """The local store was lost or restored from a backup: its old sequences mean nothing now."""
        self._ids.pop(cls, None)
        for seq in list(self._waits.get(cls, ())):
            self._finish(cls, seq, store_lost())

    def stop(self) -> None:
        """The agent stops: end all waits, for the readings are stored."""
        self._stopping = True
        for cls, waits in self._waits.items():
            for seq in list(waits):
                self._finish(cls, seq, self._not_yet(cls, "the agent is stopping"))

    def _finish(self, cls: str, seq: int, error: NotAtHubError | None) -> None:
        self._waits[cls].pop(seq).set_result(error)

    def _leave(self, cls: str, seq: int, outcome: asyncio.Future[NotAtHubError | None]) -> None:
        self._waiting[outcome] -= 1
        if not self._waiting[outcome]:
            del self._waiting[outcome]
            if self._waits[cls].get(seq) is outcome:
                del self._waits[cls][seq]
        if not self._waiting:
            self.wanted.clear()

    def _not_yet(self, cls: str, why: str) -> NotAtHubError:
        return NotAtHubError(f"the readings are stored on this machine, and not yet at the hub: {why}")


def store_lost() -> NotAtHubError:
    """Whether the hub holds the readings is unknown from now on."""
    return NotAtHubError(
        "the store of this machine was lost or restored from a backup after the readings were stored; "
        "whether the hub holds them is unknown",
        lost=True,
    )
