"""Reports to the supervisor: ready, a sentence on the agent's state, and watchdog pings.

Pings are more than a timer. They stop while the event loop is blocked, while readings wait in the publish
path and nothing of it moves, or while a running embedded server has stopped answering: a restart of the agent
helps then. Where it would not (an external server, a full disk, an unreachable hub) pings go on, and the
sentence says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from agent.base.machine import Notifier
from agent.base.wait import loop_time
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer

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


def ailment(stalled: float, silent: float) -> str | None:
    """Why the agent can't be called alive, None if it can: for so many seconds something has waited in the
    publish path and nothing of it moved, or the embedded server runs and has not answered. Pure."""
    if stalled > STALLED_SECONDS:
        return f"readings wait and nothing of the publish path has moved for {stalled:.0f} s"
    if silent > SILENT_SECONDS:
        return f"the embedded NATS server runs and has not answered for {silent:.0f} s"
    return None


class ServerSilence:
    """For how long an embedded server that runs has not answered its watch, which reports to `health`."""

    def __init__(self, server: EmbeddedServer, health: ServerHealth) -> None:
        self._server, self._health = server, health
        self._since, self._answers = 0.0, -1

    def seconds(self) -> float:
        """Seconds without an answer; 0 if no server runs or it is being started, which has a bound of its
        own. Poll it every few seconds."""
        now = loop_time()
        in_hand = self._server.pid is None or self._server.is_starting
        if in_hand or self._health.answers != self._answers:
            self._since, self._answers = now, self._health.answers
        return now - self._since


class Worker(Protocol):
    """The role of the process, as it is reported."""

    def ready(self) -> tuple[bool, str]:
        """Whether it does its work, and why not."""

    def sentence(self) -> str:
        """Its state in one sentence."""

    def stalled(self) -> float:
        """Seconds for which something has waited in the publish path and nothing of it moved."""


class Vitals:
    """Reports a `worker` to `notifier`; `silent` returns for how many seconds the embedded server has not
    answered."""

    def __init__(self, notifier: Notifier, worker: Worker, silent: Callable[[], float]) -> None:
        self._notifier, self._worker, self._silent = notifier, worker, silent
        self._said = self._ailment = ""
        self._fed = float("-inf")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        began, ready = loop.time(), False
        while True:
            now = loop.time()
            if not ready and (self._worker.ready()[0] or now - began > READY_SECONDS):
                self._notifier.ready()
                ready = True
            found = ailment(self._worker.stalled(), self._silent()) or ""
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
