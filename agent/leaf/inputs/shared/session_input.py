"""What the inputs share that hold a session with a server, their source, which keeps what they have not
acknowledged: a session is begun again after it has ended, and a chunk is submitted until it is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, TypeVar

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within, unless
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions, LocalServer
from agent.leaf.inputs.shared.submitter import unstorable
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS: Final = 60.0
"""A session that lasted longer has the next one begun after the first delay."""
_RETRY: Final = 1.0

_Options = TypeVar("_Options", bound=InputOptions)


class SessionInput(ConfiguredInput[_Options]):
    """An input of such a source, which is at `url`."""

    _source: ClassVar[str]
    """How a log line calls the source."""
    _connected: ClassVar[str]
    """Says that sessions succeed again."""
    _stored: ClassVar[str]
    """Says that submissions succeed again."""

    def __init__(self, options: _Options, metrics: Metrics, server: LocalServer, url: str) -> None:
        super().__init__(options, metrics, server)
        self._log = self._log.bind(**{self._source: url})
        self._up = metrics.input_up.labels(options.name)
        self._invalid = metrics.invalid
        self._connecting = LogEdge(self._log, self._connected)
        self._storing = LogEdge(self._log, self._stored)
        self._sparse = Sparse()

    async def _hold(
        self,
        session: Callable[[], Awaitable[str]],
        faults: tuple[type[Exception], ...],
        stopping: asyncio.Event,
    ) -> None:
        """Have sessions, one after the other, until `stopping` is set. Each returns, or raises one of the
        `faults` that says, why it is over."""
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        while not stopping.is_set():
            began = time.monotonic()
            try:
                why = await session()
            except faults as error:
                why = str(error)
            if stopping.is_set():
                break
            self._up.set(0)
            self._connecting.begin(f"nothing comes from the {self._source}: {why}")
            if time.monotonic() - began > _STEADY_SECONDS:
                backoff.reset()
            await event_within(stopping, backoff.next())

    def _flows(self) -> None:
        """Say that the source reports."""
        self._connecting.end()
        self._up.set(1)

    async def _submit(self, chunk: Chunk, intake: Intake, stopping: asyncio.Event) -> bool:
        """Submit a chunk with a position until it is stored; False when the agent stops before."""
        while not stopping.is_set():
            try:
                await intake.submit(self.name, self._options.class_, chunk)
                is_stored = True
            except RefusedError as refusal:
                if (dead := unstorable(chunk, refusal)) is not None:
                    self._invalid.labels(self.name, "too_large").inc()
                    chunk = dead
                    continue
                self._storing.begin(f"the {self._source} keeps what it has: {refusal}")
                await event_within(stopping, min(refusal.retry_after or _RETRY, _LONGEST_DELAY))
                is_stored = False
            except UnknownOutcomeError as error:
                self._storing.begin(str(error))
                resume = await unless(stopping, intake.position(self.name))
                is_stored = resume is not None and resume.position == chunk.position
            if is_stored:
                self._storing.end()
                return True
        return False
