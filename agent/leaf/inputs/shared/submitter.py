"""Stores data of senders without answers: retries until stored, and dead-letters invalid data.

Callers wait, which makes backpressure. Several chunks may be pending; behind a refused one later chunks wait,
to keep a device's order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import structs
from structlog.typing import FilteringBoundLogger

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.wait import event_within
from agent.contract import MAX_RECEIVED, Letter
from agent.leaf.inputs.shared import InputOptions
from agent.leaf.intake import Chunk, Intake, RefusalReason, RefusedError, UnknownOutcomeError

_MAX_RETRY: Final = 30.0
_RETRY: Final = 1.0
_TOGETHER: Final = 100
"""Letters submitted at once."""


class RetryingSubmitter:
    """Stores one input's data. `lost` counts readings not stored before the stop."""

    def __init__(
        self,
        options: InputOptions,
        metrics: Metrics,
        intake: Intake,
        stopping: asyncio.Event,
        log: FilteringBoundLogger,
    ) -> None:
        self._name, self._class = options.name, options.class_
        self._invalid = metrics.invalid
        self._missing = metrics.missing_values
        self._intake = intake
        self._stopping = stopping
        self._log = log
        self._storing = LogEdge(log, "readings are stored again")
        self._sparse = Sparse()
        self._numbers = itertools.count()
        self._refused: set[int] = set()
        self._settled = asyncio.Event()
        self.lost = 0

    async def store(self, payload: bytes, count: int) -> None:
        """Submit NDJSON of `count` readings until stored, or stopped."""
        chunk = Chunk(payload, count)
        too_large = await self._retry(
            lambda: self._intake.submit(self._name, self._class, chunk), readings=count
        )
        if too_large is None:
            return
        middle = payload.rfind(b"\n", 0, len(payload) // 2) + 1 or payload.find(b"\n") + 1
        if middle == len(payload):
            await self.dead_letter("too_large", [letter(payload[:-1], "a reading", str(too_large))])
            return
        first = payload.count(b"\n", 0, middle)
        await self.store(payload[:middle], first)
        await self.store(payload[middle:], count - first)

    def miss(self, no_value: int) -> None:
        """Count members without a value."""
        if no_value:
            self._missing.labels(self._name).inc(no_value)

    async def dead_letter(self, reason: str, letters: Sequence[Letter]) -> None:
        """Count, report and keep invalid data."""
        for begin in range(0, len(letters), _TOGETHER):
            batch = letters[begin : begin + _TOGETHER]
            self.skip(reason, batch[0].at, batch[0].reason, len(batch))
            await self._retry(lambda batch=batch: self._intake.dead_letter(self._name, self._class, batch))  # type: ignore[misc]

    def skip(self, reason: str, location: str, text: str, count: int = 1) -> None:
        """Count invalid data, and report its place now and then."""
        self._invalid.labels(self._name, reason).inc(count)
        self._sparse.report(self._log.warning, "data rejected", at=location, reason=text)

    def end(self) -> None:
        """Log the losses."""
        if self.lost:
            self._log.error(
                "readings that had been read are lost: the agent stopped, and nothing could be stored",
                readings=self.lost,
            )

    async def _retry(self, hand_in: Callable[[], Awaitable[None]], readings: int = 0) -> RefusedError | None:
        """Retry a submission until success or stop; returns a too-large refusal."""
        number = next(self._numbers)
        try:
            while True:
                await self._turn(number)
                try:
                    await hand_in()
                except RefusedError as refusal:
                    if refusal.reason is RefusalReason.TOO_LARGE:
                        return refusal
                    self._storing.begin(str(refusal))
                    if self._stopping.is_set():
                        self.lost += readings
                        return None
                    self._refused.add(number)
                    delay = min(refusal.retry_after or _RETRY, _MAX_RETRY)
                    await event_within(self._stopping, delay)
                except UnknownOutcomeError as error:
                    # The core retries what it has: submitted again, it could be stored twice.
                    self._storing.begin(str(error))
                    return None
                else:
                    self._storing.end()
                    return None
        finally:
            self._refused.discard(number)
            self._settled.set()
            self._settled = asyncio.Event()

    async def _turn(self, number: int) -> None:
        """Wait until no earlier chunk is refused."""
        while min(self._refused, default=number) < number:
            await self._settled.wait()


def unstorable(chunk: Chunk, refusal: RefusedError) -> Chunk | None:
    """Replace a chunk's only reading, too large for any message, by a dead letter; None for
    other refusals.
    """
    if refusal.reason is not RefusalReason.TOO_LARGE or chunk.count != 1 or chunk.letters:
        return None
    dead = letter(chunk.payload[:-1], "a reading", str(refusal))
    return structs.replace(chunk, payload=b"", count=0, letters=(dead,))


def letter(received: bytes, at: str, reason: str) -> Letter:
    """Return the dead letter of invalid data."""
    size = len(received) if len(received) > MAX_RECEIVED else None
    return Letter(received[:MAX_RECEIVED], at, reason, size)
