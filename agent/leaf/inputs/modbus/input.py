"""Reads registers of units on one TCP connection or serial line at intervals: the input `modbus`.

A refused sample is dropped and counted; samples never queue. A silent unit is asked ever more rarely, so that
others wait for one `timeout` only. Exceptions are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from agent import contract
from agent.base.clock import wall_ns
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import Backoff, unless
from agent.leaf.inputs.formats import split_valid
from agent.leaf.inputs.modbus import ModbusOptions, problems
from agent.leaf.inputs.modbus.plan import Read, numbers, plan, split
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.samples import SampleLine, SampleStore, encode, turns
from agent.leaf.intake import Chunk, Intake

if TYPE_CHECKING:
    from agent.leaf.inputs.modbus.line import Line, UnitError

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
_CHUNK_READINGS: Final = 1_000
"""Readings per chunk; fits a batch with the longest names."""


class _Unit(Struct):
    """A unit, and when to ask it again after silence."""

    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_DELAY, _LONGEST_DELAY))
    silent_until: float = 0.0


class ModbusInput(ConfiguredInput[ModbusOptions]):
    _intake: Intake
    _stopping: asyncio.Event

    def __init__(self, options: ModbusOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._invalid = metrics.invalid
        self._up = metrics.input_up.labels(options.name)
        self._store = SampleStore(options.name, options.class_, self._log)
        self._connecting = LogEdge(self._log, f"{options.url} can be read again")
        self._units = {register.unit: _Unit() for register in options.registers}
        self._failing: dict[tuple[int, str, int], LogEdge] = {}
        """Failing requests by unit, table and address."""

    def _mistakes(self) -> Iterator[str]:
        return problems(self._options)

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        self._intake, self._stopping = intake, stopping
        from agent.leaf.inputs.modbus.line import Line  # with pymodbus, where it is needed

        self._up.set(0)
        line = Line(self._options)
        groups = plan(self._options.registers, self._options.interval, self._options.gap)
        try:
            async with asyncio.TaskGroup() as group:
                for interval, reads in groups.items():
                    group.create_task(self._follow(interval, reads, line))
        finally:
            line.close()

    async def _follow(self, interval: float, reads: list[Read], line: Line) -> None:
        async for _ in turns(interval, self._stopping):
            reads = await self._sample(reads, line)
            self._up.set(0 if self._connecting or self._failing else 1)

    async def _sample(self, reads: list[Read], line: Line) -> list[Read]:
        """Read and store a sample; returns the next requests."""
        from agent.leaf.inputs.modbus.line import ILLEGAL_ADDRESS, BusError, UnitError

        lines: list[SampleLine] = []
        following: list[Read] = []
        failing = {unit for unit, _, _ in self._failing}
        ordered = sorted(reads, key=lambda read: read.unit in failing)
        for place, read in enumerate(ordered, 1):
            following.append(read)
            unit = self._units[read.unit]
            if self._stopping.is_set() or time.monotonic() < unit.silent_until:
                continue
            try:
                answer = await unless(self._stopping, line.read(read))
            except BusError as error:
                self._connecting.begin(f"{self._options.url} cannot be read: {error}")
                self._invalid.labels(self.name, "unreachable").inc()
                following += ordered[place:]
                break
            except UnitError as error:
                self._connecting.end()
                if error.code == ILLEGAL_ADDRESS and read.has_gaps:
                    following[-1:] = split(read)  # what lies between may not be read
                    continue
                self._fail(read, unit, error)
                continue
            self._connecting.end()
            if answer is not None:
                lines += self._lines(read, unit, answer, self._intake.domain)
        for first in range(0, len(lines), _CHUNK_READINGS):
            parsed = split_valid(
                encode(lines[first : first + _CHUNK_READINGS]), self._intake.domain, wall_ns()
            )
            if not await self._store.store(Chunk(parsed.payload, parsed.count), self._intake):
                break
        return following

    def _lines(
        self, read: Read, unit: _Unit, answer: Sequence[int | bool], domain: str
    ) -> Iterator[SampleLine]:
        unit.backoff.reset()
        if (failing := self._failing.pop((read.unit, read.table, read.address), None)) is not None:
            failing.end()
        ts = contract.machine_time(wall_ns())
        for value, number in numbers(read, answer):
            if number is None:
                self._invalid.labels(self.name, "not_finite").inc()
            else:
                yield SampleLine(ts, value.device or domain, value.metric, number)

    def _fail(self, read: Read, unit: _Unit, error: UnitError) -> None:
        """Delay a silent unit; keep asking one that refused."""
        self._invalid.labels(self.name, error.reason).inc()
        if error.code is None:
            unit.silent_until = time.monotonic() + unit.backoff.next()
        place = (read.unit, read.table, read.address)
        failing = self._failing.setdefault(place, LogEdge(self._log, f"unit {read.unit} can be read again"))
        failing.begin(f"unit {read.unit} cannot be read: {error}", table=read.table, address=read.address)
