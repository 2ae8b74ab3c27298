"""Watches the machine's clock and stores corrections. It never sets the clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

import structlog

from agent.base.clock import ClockReader, Instant
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.contract import Correction, clock_subject, leaf_stream
from agent.jetstream import JetStream, JetStreamError
from agent.jetstream.client import publish_own
from agent.leaf import timeline
from agent.leaf.state_file import StateFile

LOOK_SECONDS = 1.0
MAX_WAITING = 64

log = structlog.get_logger("clock")


class ClockMonitor:
    """Compares the clocks at each `look`: at every seal and once a second.

    A correction stays in the state file until every class's stream has it; `stored(cls, seq)` is then called.
    """

    def __init__(
        self,
        domain: str,
        classes: Iterable[str],
        state: StateFile,
        metrics: Metrics,
        stored: Callable[[str, int], None],
    ) -> None:
        self._domain, self._classes, self._state, self._metrics = domain, list(classes), state, metrics
        self._stored = stored
        self._reader = ClockReader()
        self._js: JetStream | None = None
        self._storing = LogEdge(log, "clock corrections stored again")

    @contextlib.contextmanager
    def connected(self, js: JetStream) -> Iterator[None]:
        """Store over this connection within the scope."""
        self._js = js
        try:
            yield
        finally:
            self._js = None

    def look(self) -> Instant:
        """Return the present clocks."""
        instant = self._reader.look()
        state = self._state.current
        observed = timeline.observe(state.clock, instant, self._domain)
        self._metrics.clock_synchronised.set(instant.clock.synchronised)
        if observed.stepped:
            self._metrics.clock_steps.inc()
            log.warning("clock stepped", seconds=observed.stepped / 1e9)
        if observed.timeline != state.clock:
            state.clock = observed.timeline
            self._state.mark()
        if observed.corrections:
            state.corrections = [*state.corrections, *observed.corrections][-MAX_WAITING:]
            for correction in observed.corrections:
                seconds = correction.by / 1e9
                log.warning("clock was wrong, times are corrected", seconds=seconds)
        return instant

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            self.look()
            if self._state.current.corrections and self._js is not None:
                await self._store(self._js)
            await asyncio.sleep(LOOK_SECONDS)

    async def _store(self, js: JetStream) -> None:
        corrections = self._state.current.corrections
        try:
            for correction in list(corrections):
                for cls in self._classes:
                    await self._publish(js, cls, correction)
                corrections.remove(correction)
                self._state.mark()
        except JetStreamError as error:
            self._storing.begin(f"clock correction postponed: {error}")
        else:
            self._storing.end()

    async def _publish(self, js: JetStream, cls: str, correction: Correction) -> None:
        ident = f"{correction.boot}-{cls}-clock-{correction.since}"
        stream, subject = leaf_stream(self._domain, cls), clock_subject(self._domain, cls)
        seq = await publish_own(js, stream, subject, correction.encode(), ident)
        self._stored(cls, seq)
