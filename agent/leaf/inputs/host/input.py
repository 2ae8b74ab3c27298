"""Samples the machine by psutil and /proc at an interval: the input `host`.

Readings of a sample share `ts`; `device` is the domain. docs/inputs.md lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from agent import contract
from agent.base.clock import wall_ns
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import unless
from agent.leaf.inputs.host import GROUPS, HostOptions
from agent.leaf.inputs.host.procfs import Measure
from agent.leaf.inputs.host.psutil_metrics import Sample, Sampler
from agent.leaf.inputs.shared import NO_SERVER, ConfiguredInput, LocalServer
from agent.leaf.inputs.shared.samples import Names, SampleLine, SampleStore, check_interval, encode, turns
from agent.leaf.intake import Chunk, Intake

_HANGS_AFTER: Final = 10.0


class HostInput(ConfiguredInput[HostOptions]):
    def __init__(self, options: HostOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._store = SampleStore(options.name, options.class_, self._log)
        self._hanging = LogEdge(self._log, "the machine answers again")
        self._failing = {group: LogEdge(self._log, f"{group} can be read again") for group in GROUPS}

    def _mistakes(self) -> Iterator[str]:
        if (mistake := check_interval(self._options.interval)) is not None:
            yield mistake

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        options = self._options
        sampler = Sampler(
            tuple(group for group in GROUPS if group in options.collect),
            Names(options.mounts, options.no_mounts).wants,
        )
        async for _ in turns(options.interval, stopping):
            sample = await self._take(sampler, stopping)
            if sample is not None and sample.measures:
                await self._store.store(_chunk(sample.measures, intake.domain, wall_ns()), intake)

    async def _take(self, sampler: Sampler, stopping: asyncio.Event) -> Sample | None:
        """Return a sample, None when stopping. Runs in a thread, because a disk may hang."""
        alarm = asyncio.get_running_loop().call_later(
            _HANGS_AFTER,
            self._hanging.begin,
            f"sampling has taken {_HANGS_AFTER:.0f} s: a disk or sensor hangs",
        )
        try:
            sample = await unless(stopping, asyncio.to_thread(sampler.sample))
        finally:
            alarm.cancel()
        if sample is None:
            return None
        self._hanging.end()
        for group, fault in self._failing.items():
            if group in sample.problems:
                fault.begin(f"{group} cannot be read: {sample.problems[group]}")
            else:
                fault.end()
        return sample


def _chunk(measures: list[Measure], domain: str, now_ns: int) -> Chunk:
    ts = contract.machine_time(now_ns)
    lines = [SampleLine(ts, domain, measure.metric, measure.value, measure.tags) for measure in measures]
    return Chunk(encode(lines), len(lines))
