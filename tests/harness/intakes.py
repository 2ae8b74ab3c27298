"""What stands in for the core before an input: honest, in memory, and refusing when told to."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from agent.base.metrics import Metrics
from agent.contract import Doubt, Letter
from agent.leaf.inputs.shared import ConfiguredInput
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint
from agent.leaf.publish.idempotency import name_of
from tests.harness.wait import until


class MemoryNotes:
    """Keeps in memory what an input keeps."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.doubts: list[Doubt] = []

    def take_stale(self, input_name: str) -> bool:
        return False

    async def kept(self, input_name: str) -> str | None:
        return self.texts.get(input_name)

    async def keep(self, input_name: str, text: str) -> None:
        self.texts[input_name] = text

    async def doubt(self, cls: str, doubt: Doubt) -> None:
        self.doubts.append(doubt)


class NoLetters:
    """The part of an `Intake` that an input with a sender to answer never calls."""

    @functools.cached_property
    def notes(self) -> MemoryNotes:
        return MemoryNotes()

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        raise AssertionError(f"{input_name} buries {letters}")


class Core(NoLetters):
    """Stores at once, knows the keys of what it stored and its last position, refuses when told to."""

    domain = "edge-1"

    def __init__(self, name: str = "http") -> None:
        self._name = name
        self.stored: list[Chunk] = []
        self.refuse: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        assert (input_name, cls) == (self._name, "normal")
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        if self.refuse is not None:
            raise self.refuse
        known = {name_of(one.request): one.request for one in self.stored if one.request is not None}
        if chunk.request is not None and (name := name_of(chunk.request)) in known:
            if known[name] != chunk.request:
                raise RefusedError(RefusalReason.KEY_REUSED, "the key was used for another request")
            return
        self.stored.append(chunk)

    async def position(self, input_name: str) -> ResumePoint:
        positions = [one.position for one in self.stored if one.position is not None]
        return ResumePoint(positions[-1]) if positions else ResumePoint()

    def rows(self) -> list[dict[str, Any]]:
        """All readings, in order."""
        return [json.loads(row) for chunk in self.stored for row in chunk.payload.splitlines()]

    def values(self) -> list[Any]:
        """Their values."""
        return [row["value"] for row in self.rows()]


class Burying(Core):
    """A core that keeps dead letters as well."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.letters: list[Letter] = []

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        await super().submit(input_name, cls, chunk)
        self.letters += chunk.letters

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.letters += letters


class SampleCore(NoLetters):
    """Takes samples, which have no position, after refusing the first few."""

    domain = "edge-1"

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.chunks: list[Chunk] = []
        self.taken = asyncio.Event()

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        if self.refuse:
            self.refuse -= 1
            raise RefusedError(RefusalReason.FULL, "the stream is full", 10.0)
        assert len(chunk.payload.splitlines()) == chunk.count
        self.chunks.append(chunk)
        self.taken.set()

    async def position(self, input_name: str) -> ResumePoint:
        raise AssertionError("a sample has no position")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All readings, in order."""
        return [json.loads(row) for chunk in self.chunks for row in chunk.payload.splitlines()]

    def values(self, metric: str) -> list[float]:
        """The values of a metric, in order."""
        return [row["value"] for row in self.rows if row["metric"] == metric]


class RunningInput:
    """An input that runs before such a core."""

    def __init__(self, made: ConfiguredInput[Any], metrics: Metrics) -> None:
        self.name, self.metrics = made.name, metrics
        self.core = Burying(made.name)
        self.stopping = asyncio.Event()
        self.running = asyncio.create_task(made.run(self.core, self.stopping))

    async def stored(self, count: int) -> None:
        """Return once so many readings are stored."""
        await until(lambda: sum(one.count for one in self.core.stored) >= count, f"{count} are stored")

    def value(self, name: str, **labels: str) -> float:
        """A metric of this input."""
        return self.metrics.registry.get_sample_value(name, {"input": self.name, **labels}) or 0.0

    def invalid(self, reason: str) -> float:
        """How often something was not taken for that reason."""
        return self.value("petiole_invalid_requests_total", reason=reason)


_Running = TypeVar("_Running", bound=RunningInput)


@contextlib.asynccontextmanager
async def stopped_in_time(one: _Running) -> AsyncIterator[_Running]:
    """`one`, which is stopped with the context; its core takes everything by then."""
    try:
        yield one
    finally:
        one.core.open.set()
        one.core.refuse = None
        one.stopping.set()
        async with asyncio.timeout(30):
            await one.running
