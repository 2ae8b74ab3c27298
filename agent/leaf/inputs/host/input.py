"""The input `host`: how the machine itself does, read by psutil and from /proc at a fixed interval.

A sample that is refused is dropped (the core counts it as refused) and the next one is taken when it is due:
samples never queue up. Readings of one sample share one `ts`; `device` is the domain. In base units:

- cpu: `cpu_percent` (0 to 100, of all cores, without waiting for I/O) and `cpu_mode_percent` (tag `mode`),
  both of the time since the sample before; `load_1m`, `load_5m`, `load_15m`; `uptime_seconds`.
- memory: `memory_total_bytes`, `memory_used_bytes`, `memory_available_bytes`, `swap_total_bytes`,
  `swap_used_bytes`.
- disk: `disk_total_bytes`, `disk_used_bytes`, `disk_free_bytes`, `disk_inodes`, `disk_free_inodes` (tag
  `mount`, one a local device); since the machine's start `disk_read_bytes`, `disk_written_bytes`,
  `disk_reads`, `disk_writes`, `disk_busy_seconds` (tag `disk`).
- network, without the loopback and the ends of containers, since the machine's start:
  `network_received_bytes`, `network_sent_bytes`, `network_received_packets`, `network_sent_packets`,
  `network_receive_errors`, `network_send_errors`, `network_receive_drops`, `network_send_drops` (tag
  `interface`).
- temperature: `temperature_celsius` (tags `chip`, `sensor`), where the machine has sensors.
- system: `processes`, `threads`, `threads_running`, `open_files`, `open_files_limit`.
- pressure, where the kernel accounts for it: the share of the last ten seconds in which `some` or all
  (`full`) tasks waited, `pressure_percent`, and for how long since the machine's start, `pressure_seconds`
  (tags `resource`: cpu, memory, io; `share`).
- sockets: `tcp_connections`, `tcp_time_wait`, `tcp_orphans`; since the machine's start
  `tcp_retransmitted_segments`, `tcp_failed_attempts`, `udp_unclaimed_datagrams`, `udp_receive_errors`,
  `udp_receive_buffer_errors`, `udp_send_buffer_errors`.

And these only when they are asked for:
- cores: `cpu_core_percent` (tag `core`), since the sample before.
- fans: `fan_rpm` (tags `chip`, `fan`).
- battery: `battery_percent`, `battery_plugged` (1 or 0).
- container, of the control group (version 2) that the agent is in: `cgroup_memory_bytes`, `cgroup_processes`,
  `cgroup_cpu_seconds`, `cgroup_throttled_seconds`, `cgroup_oom_kills`; where there is a limit
  `cgroup_memory_limit_bytes`, `cgroup_processes_limit`, `cgroup_cpu_limit_cores`.
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
    """Samples this machine."""

    def __init__(self, options: HostOptions, metrics: Metrics, server: LocalServer = NO_SERVER) -> None:
        super().__init__(options, metrics, server)
        self._store = SampleStore(options.name, options.class_, self._log)
        self._hanging = LogEdge(self._log, "the machine answers again")
        self._failing = {group: LogEdge(self._log, f"{group} can be read again") for group in GROUPS}

    def _mistakes(self) -> Iterator[str]:
        if (mistake := check_interval(self._options.interval)) is not None:
            yield mistake

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Take and store samples until `stopping` is set."""
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
    lines = [SampleLine(ts, domain, measure.metric, measure.value, measure.tags) for measure in measures]
    return Chunk(encode(lines), len(lines))
