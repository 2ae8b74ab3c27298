"""The input `host`: how the machine itself does, read by psutil at a fixed interval.

A sample that is refused is dropped (the core counts it as refused) and the next one is taken when it is due:
samples never queue up. Readings of one sample share one `ts`; `device` is the domain. In base units:

- cpu: `cpu_percent` (0 to 100, of all cores, without waiting for I/O) and `cpu_mode_percent` (tag `mode`),
  both of the time since the sample before; `load_1m`, `load_5m`, `load_15m`; `uptime_seconds`.
- memory: `memory_total_bytes`, `memory_used_bytes`, `memory_available_bytes`, `swap_total_bytes`,
  `swap_used_bytes`.
- disk: `disk_total_bytes`, `disk_used_bytes`, `disk_free_bytes` (tag `mount`, one a local device); since
  the machine's start `disk_read_bytes`, `disk_written_bytes`, `disk_reads`, `disk_writes`,
  `disk_busy_seconds` (tag `disk`).
- network, without the loopback and the ends of containers, since the machine's start:
  `network_received_bytes`, `network_sent_bytes`, `network_received_packets`, `network_sent_packets`,
  `network_receive_errors`, `network_send_errors`, `network_receive_drops`, `network_send_drops` (tag
  `interface`).
- temperature: `temperature_celsius` (tags `chip`, `sensor`), where the machine has sensors.

Options (`[[input]]` with `type = "host"`):
- `name` ("host"): names the input in batch subjects and metrics.
- `class` ("normal"): the class of its readings.
- `ack` ("stored"): "accepted", "stored" or "hub": what is waited for before the next sample is handed in.
- `interval` ("10s"): seconds from sample to sample.
- `collect` (all): which of "cpu", "memory", "disk", "network", "temperature".
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from agent import contract
from agent.clock import wall_ns
from agent.config import Seconds
from agent.inputs.options import InputOptions
from agent.inputs.report import Fault
from agent.inputs.samples import Line, SampleStore, check_interval, encode, next_due
from agent.inputs.sampling import GROUPS, Group, Measure, Sample, Sampler
from agent.inputs.stopping import unless
from agent.intake import Chunk, Intake
from agent.metrics import Metrics

_HANGS_AFTER: Final = 10.0


class HostOptions(InputOptions, tag="host", kw_only=True):
    """The options of one `host` input; the module says what each means."""

    name: str = "host"
    interval: Seconds = Seconds(10.0)
    collect: list[Group] = msgspec.field(default_factory=lambda: list(GROUPS))


class HostInput:
    """Samples this machine."""

    def __init__(self, options: HostOptions, metrics: Metrics) -> None:
        self._options = options
        log = structlog.get_logger("host").bind(input=options.name)
        self._store = SampleStore(options.name, options.class_, log)
        self._hanging = Fault(log, "the machine answers again")
        self._failing = {group: Fault(log, f"{group} can be read again") for group in GROUPS}

    @property
    def name(self) -> str:
        """The name in the configuration and in the batch subject."""
        return self._options.name

    def check(self) -> list[str]:
        """What stands in the way, one sentence a problem."""
        problem = check_interval(self._options.interval)
        return [] if problem is None else [f"input {self.name!r}: {problem}"]

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Take and store samples until `stopping` is set."""
        sampler = Sampler(tuple(group for group in GROUPS if group in self._options.collect))
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not stopping.is_set():
            sample = await self._take(sampler, stopping)
            if sample is not None and sample.measures:
                await self._store.store(_chunk(sample.measures, intake.domain, wall_ns()), intake)
            due = next_due(due, loop.time(), self._options.interval)
            await unless(stopping, asyncio.sleep(due - loop.time()))

    async def _take(self, sampler: Sampler, stopping: asyncio.Event) -> Sample | None:
        """A sample, None when the agent stops. A disk that hangs holds the sample up, not the agent."""
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
    lines = [Line(ts, domain, one.metric, one.value, one.tags) for one in measures]
    return Chunk(encode(lines), len(lines))
