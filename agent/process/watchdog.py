"""Reports readiness, state and watchdog pings to the supervisor.

Pings stop while the event loop blocks, the publish path stalls, or a running embedded server is silent,
because a restart helps. For other faults (external server, full disk, hub) pings continue with a sentence.
"""

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
"""Reports ready after this time, so the supervisor does not end a waiting agent."""
STALLED_SECONDS: Final = 120.0
"""Wait for answers, above `agent.leaf.publish.sender.RETRY_WITHIN`, which reconnects first."""
SILENT_SECONDS: Final = 60.0
"""Longest silence of a running embedded server."""
_LOOK_SECONDS: Final = 1.0

log = structlog.get_logger("agent")


def ailment(stalled: float, silent: float) -> str | None:
    """Return why the agent is not alive, or None, by stalled and silent seconds. Pure."""
    if stalled > STALLED_SECONDS:
        return f"readings wait and nothing of the publish path has moved for {stalled:.0f} s"
    if silent > SILENT_SECONDS:
        return f"the embedded NATS server runs and has not answered for {silent:.0f} s"
    return None


class ServerSilence:
    """Measures a running server's silence by its watch's reports to `health`."""

    def __init__(self, server: EmbeddedServer, health: ServerHealth) -> None:
        self._server, self._health = server, health
        self._since, self._answers = 0.0, -1

    def seconds(self) -> float:
        """Return seconds without answer; 0 if not running or starting. Poll every few seconds."""
        now = loop_time()
        in_hand = self._server.pid is None or self._server.is_starting
        if in_hand or self._health.answers != self._answers:
            self._since, self._answers = now, self._health.answers
        return now - self._since


class Worker(Protocol):
    """The reported role."""

    def ready(self) -> tuple[bool, str]:
        """Return whether it works, and why not."""

    def sentence(self) -> str:
        """Return its state in one sentence."""

    def stalled(self) -> float:
        """Return seconds of a stalled publish path."""


class Vitals:
    """Reports `worker` to `notifier`; `silent` returns the server's silence in seconds."""

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
        """Ping the watchdog four times per period."""
        if self._notifier.watchdog is not None and now - self._fed >= self._notifier.watchdog / 4:
            self._notifier.alive()
            self._fed = now
