"""Shares retries of chunks and sessions among inputs whose source keeps unstored data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final, TypeVar

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, event_within, unless
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions, LocalServer
from agent.leaf.inputs.shared.submitter import unstorable
from agent.leaf.intake import Chunk, Intake, NotAtHubError, RefusedError, UnknownOutcomeError

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS: Final = 60.0
"""A session that lasted this long restarts after the first delay."""
_RETRY: Final = 1.0

_Options = TypeVar("_Options", bound=InputOptions)


class PositionedInput(ConfiguredInput[_Options]):
    """An input with positions; log lines name its `source`."""

    _intake: Intake
    _stopping: asyncio.Event
    _stored: ClassVar[str]
    """Log event when submissions succeed again."""
    _kept = ""
    """Log text before the reason of a refusal."""
    _acknowledges: ClassVar[bool] = False
    """Whether stored data is acknowledged to the source, which may then drop it."""

    def __init__(
        self, options: _Options, metrics: Metrics, server: LocalServer, source: Mapping[str, str] = {}
    ) -> None:
        super().__init__(options, metrics, server)
        self._log = self._log.bind(**source)
        self._up = metrics.input_up.labels(options.name)
        self._invalid = metrics.invalid
        self._storing = LogEdge(self._log, self._stored)
        self._sparse = Sparse()

    async def _submit(self, chunk: Chunk) -> bool:
        """Submit a chunk until stored (at level `hub` until there, if acknowledged); False when stopping."""
        while not self._stopping.is_set():
            try:
                await self._intake.submit(self.name, self._options.class_, chunk)
                is_stored = True
            except RefusedError as refusal:
                if (dead := unstorable(chunk, refusal)) is not None:
                    self._count_unstorable(str(refusal))
                    chunk = dead
                    continue
                self._storing.begin(f"{self._kept}{refusal}")
                await event_within(self._stopping, min(refusal.retry_after or _RETRY, _LONGEST_DELAY))
                is_stored = False
            except UnknownOutcomeError as error:
                self._storing.begin(str(error))
                if self._acknowledges and isinstance(error, NotAtHubError) and not error.lost:
                    await event_within(self._stopping, _RETRY)
                    continue  # it is not stored again, and the hub is waited for again
                resume = await unless(self._stopping, self._intake.position(self.name))
                is_stored = resume is not None and resume.position == chunk.position
            if is_stored:
                self._storing.end()
                return True
        return False

    def _count_unstorable(self, _reason: str) -> None:
        """Count a reading that becomes a dead letter because no message can hold it."""
        self._invalid.labels(self.name, "too_large").inc()


class SessionInput(PositionedInput[_Options]):
    """An input whose source is a server at `url`."""

    _source: ClassVar[str]
    """The source's name in log lines."""
    _connected: ClassVar[str]
    """Log event when sessions succeed again."""
    _acknowledges = True

    def __init__(self, options: _Options, metrics: Metrics, server: LocalServer, url: str) -> None:
        super().__init__(options, metrics, server, {self._source: url})
        self._connecting = LogEdge(self._log, self._connected)
        self._kept = f"the {self._source} keeps what it has: "

    async def _hold(self, session: Callable[[], Awaitable[str]], faults: tuple[type[Exception], ...]) -> None:
        """Run sessions until stopping. Each returns why it ended, or raises one of `faults`."""
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, _STEADY_SECONDS)
        while not self._stopping.is_set():
            try:
                why = await session()
            except faults as error:
                why = str(error)
            if self._stopping.is_set():
                break
            self._up.set(0)
            self._connecting.begin(f"nothing comes from the {self._source}: {why}")
            await event_within(self._stopping, backoff.next())

    async def _reach(self) -> bool:
        """Wait until stored data reached its level; False when stopping."""
        if self._options.ack != "hub":
            return True
        resume = await unless(self._stopping, self._intake.position(self.name))
        if resume is None:
            return False
        if resume.position is None or resume.until is not None:
            return True  # nothing is stored, or what is begun waits for all before it
        return await self._submit(Chunk(b"", 0, position=resume.position))

    def _flows(self) -> None:
        """Log that the source reports."""
        self._connecting.end()
        self._up.set(1)
