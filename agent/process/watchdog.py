"""Reports to the supervisor: ready, a sentence on the agent's state, and watchdog pings.

Pings are more than a timer. They stop while the event loop is blocked, while readings wait in the publish
path and nothing of it moves, or while a running embedded server has stopped answering: a restart of the agent
helps then. Where it would not (an external server, a full disk, an unreachable hub) pings go on, and the
sentence says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from agent.base.machine import Notifier
from agent.base.wait import loop_time

READY_SECONDS: Final = 10.0
"""The agent reports ready after this time even if nothing can be stored yet: it waits for its server, and the
supervisor must not end it for that."""
STALLED_SECONDS: Final = 120.0
"""How long batches may wait for an answer that does not come. Above `agent.leaf.publish.sender.RETRY_WITHIN`,
after which the path helps itself by a new connection."""
SILENT_SECONDS: Final = 60.0
"""How long an embedded server that runs may leave its watch unanswered."""
_LOOK_SECONDS: Final = 1.0

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class Signs:
    """By what the agent is called alive."""

    stalled: float = 0.0
    """Seconds for which something has waited in the publish path and nothing of it moved."""
    silent: float = 0.0
    """Seconds for which the embedded server runs and has not answered."""


def ailment(signs: Signs) -> str | None:
    """Why the agent can't be called alive, None if it can. Pure."""
    if signs.stalled > STALLED_SECONDS:
        return f"readings wait and nothing of the publish path has moved for {signs.stalled:.0f} s"
    if signs.silent > SILENT_SECONDS:
        return f"the embedded NATS server runs and has not answered for {signs.silent:.0f} s"
    return None


class EmbeddedServer(Protocol):
    """What is asked of an embedded server."""

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""

    @property
    def is_starting(self) -> bool:
        """Whether it is being started, which has a bound of its own."""


class Looks(Protocol):
    """What the watch of the server reports to."""

    answers: int
    """How often the server has answered."""


class ServerSilence:
    """For how long an embedded server that runs has not answered."""

    def __init__(self, server: EmbeddedServer, looks: Looks) -> None:
        self._server, self._looks = server, looks
        self._since, self._answers = 0.0, -1

    def seconds(self) -> float:
        """Seconds without an answer; 0 if no server runs or it is being started. Poll it every few
        seconds."""
        now = loop_time()
        in_hand = self._server.pid is None or self._server.is_starting
        if in_hand or self._looks.answers != self._answers:
            self._since, self._answers = now, self._looks.answers
        return now - self._since


class Worker(Protocol):
    """The role of the process, as it is reported."""

    def ready(self) -> tuple[bool, str]:
        """Whether it does its work, and why not."""

    def sentence(self) -> str:
        """Its state."""


class Vitals:
    """Reports a `worker` to `notifier`."""

    def __init__(self, notifier: Notifier, worker: Worker, signs: Callable[[], Signs]) -> None:
        self._notifier, self._worker, self._signs = notifier, worker, signs
        self._said = self._ailment = ""
        self._fed = float("-inf")

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        began, ready = loop.time(), False
        while True:
            now = loop.time()
            if not ready and (self._worker.ready()[0] or now - began > READY_SECONDS):
                self._notifier.ready()
                ready = True
            found = ailment(self._signs()) or ""
            self._tell(found or self._sentence())
            if found and not self._ailment:
                log.error("watchdog pings stopped: the agent is stuck", reason=found)
            self._ailment = found
            if not found:
                self._feed(now)
            await asyncio.sleep(_LOOK_SECONDS)

    def _sentence(self) -> str:
        well, words = self._worker.ready()
        return self._worker.sentence() if well else words

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._notifier.status(words)
            self._said = words

    def _feed(self, now: float) -> None:
        """Ping the watchdog, four times within its period."""
        if self._notifier.watchdog is not None and now - self._fed >= self._notifier.watchdog / 4:
            self._notifier.alive()
            self._fed = now
