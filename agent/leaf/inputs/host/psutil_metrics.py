"""Measures the machine by psutil on Linux."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from agent.leaf.inputs.host import Group, procfs
from agent.leaf.inputs.host.procfs import Measure

_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Modes that sum to all time; guests are in `user` and `nice`."""
_IMAGES: Final = frozenset({"squashfs", "erofs", "iso9660"})
"""Read-only, always full file systems."""
_NO_DISKS: Final = ("loop", "ram", "zram")
_NO_INTERFACES: Final = ("lo", "veth")
_BLOCK: Final = Path("/sys/block")


class Sample(NamedTuple):
    """Measures, and the fault of each failed group."""

    measures: list[Measure]
    problems: dict[str, str]


class Sampler:
    """Samples groups, with file systems accepted by `measures_mount`. Blocking; call from one thread at a
    time.
    """

    def __init__(
        self, groups: tuple[Group, ...], measures_mount: Callable[[str], bool] = lambda _mount: True
    ) -> None:
        self._groups, self._measures_mount = groups, measures_mount
        self._cpu: dict[str, float] | None = None
        self._cores: list[dict[str, float]] = []

    def sample(self) -> Sample:
        """Measure once. A failed group does not affect others."""
        takers: dict[Group, Callable[[], Iterator[Measure]]] = {
            "cpu": self._take_cpu,
            "memory": _memory,
            "disk": self._take_disks,
            "network": _network,
            "temperature": _temperatures,
            "system": procfs.system,
            "pressure": procfs.pressure,
            "sockets": procfs.sockets,
            "cores": self._take_cores,
            "fans": _fans,
            "battery": _battery,
            "container": procfs.container,
        }
        measures: list[Measure] = []
        problems: dict[str, str] = {}
        for group in self._groups:
            try:
                measures += takers[group]()
            except (OSError, RuntimeError, ValueError, psutil.Error) as error:
                problems[group] = f"{type(error).__name__}: {error}"
        return Sample(measures, problems)

    def _take_cpu(self) -> Iterator[Measure]:
        # psutil's own percentages are kept for each thread that asks, and a thread pool asks from any.
        before, self._cpu = self._cpu, psutil.cpu_times()._asdict()
        if before is not None:
            shares = cpu_shares(before, self._cpu)
            for mode, share in shares.items():
                yield Measure("cpu_mode_percent", share, {"mode": mode})
            if shares:
                yield Measure("cpu_percent", round(100.0 - shares["idle"] - shares["iowait"], 2))
        for span, load in zip(("1m", "5m", "15m"), os.getloadavg(), strict=True):
            yield Measure(f"load_{span}", round(load, 2))
        yield Measure("uptime_seconds", round(time.clock_gettime(time.CLOCK_BOOTTIME), 3))

    def _take_cores(self) -> Iterator[Measure]:
        before, self._cores = self._cores, [times._asdict() for times in psutil.cpu_times(percpu=True)]
        for number, (was, now) in enumerate(zip(before, self._cores, strict=False)):
            shares = cpu_shares(was, now)
            if shares:
                busy = round(100.0 - shares["idle"] - shares["iowait"], 2)
                yield Measure("cpu_core_percent", busy, {"core": str(number)})

    def _take_disks(self) -> Iterator[Measure]:
        yield from _disks()
        for mount in mounts(
            (partition.device, partition.mountpoint, partition.fstype)
            for partition in psutil.disk_partitions()
        ):
            if self._measures_mount(mount):
                yield from _usage(mount)


def cpu_shares(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return per cent of time per CPU mode between two counts; {} when none passed. Decreases, as of
    `iowait`, count 0.
    """
    spent = {mode: max(0.0, after.get(mode, 0.0) - before.get(mode, 0.0)) for mode in _MODES}
    total = sum(spent.values())
    return {mode: round(100.0 * seconds / total, 2) for mode, seconds in spent.items()} if total > 0 else {}


def _memory() -> Iterator[Measure]:
    memory = psutil.virtual_memory()
    yield Measure("memory_total_bytes", memory.total)
    yield Measure("memory_used_bytes", memory.used)
    yield Measure("memory_available_bytes", memory.available)
    yield from procfs.swap()


def _disks() -> Iterator[Measure]:
    whole = {disk.name for disk in _BLOCK.iterdir()} if _BLOCK.is_dir() else set()
    for disk, io in psutil.disk_io_counters(perdisk=True).items():
        if disk in whole and not disk.startswith(_NO_DISKS):
            tags = {"disk": disk}
            yield Measure("disk_read_bytes", io.read_bytes, tags)
            yield Measure("disk_written_bytes", io.write_bytes, tags)
            yield Measure("disk_reads", io.read_count, tags)
            yield Measure("disk_writes", io.write_count, tags)
            yield Measure("disk_busy_seconds", io.busy_time / 1000.0, tags)


def _usage(mount: str) -> Iterator[Measure]:
    """Yield file system space; root's reserve is neither used nor free, as in df(1)."""
    usage = os.statvfs(mount)
    tags = {"mount": _text(mount)}
    yield Measure("disk_total_bytes", usage.f_blocks * usage.f_frsize, tags)
    yield Measure("disk_used_bytes", (usage.f_blocks - usage.f_bfree) * usage.f_frsize, tags)
    yield Measure("disk_free_bytes", usage.f_bavail * usage.f_frsize, tags)
    if usage.f_files:  # some file systems count none
        yield Measure("disk_inodes", usage.f_files, tags)
        yield Measure("disk_free_inodes", usage.f_favail, tags)


def mounts(partitions: Iterator[tuple[str, str, str]]) -> list[str]:
    """Return one mount per device, nearest to the root, without read-only images, from (device, mount point,
    type).
    """
    by_device: dict[str, str] = {}
    for device, mount, kind in partitions:
        if kind not in _IMAGES and len(mount) < len(by_device.get(device, mount + "/")):
            by_device[device] = mount
    return sorted(by_device.values())


def _network() -> Iterator[Measure]:
    for interface, io in psutil.net_io_counters(pernic=True).items():
        if interface.startswith(_NO_INTERFACES):
            continue
        tags = {"interface": interface}
        yield Measure("network_received_bytes", io.bytes_recv, tags)
        yield Measure("network_sent_bytes", io.bytes_sent, tags)
        yield Measure("network_received_packets", io.packets_recv, tags)
        yield Measure("network_sent_packets", io.packets_sent, tags)
        yield Measure("network_receive_errors", io.errin, tags)
        yield Measure("network_send_errors", io.errout, tags)
        yield Measure("network_receive_drops", io.dropin, tags)
        yield Measure("network_send_drops", io.dropout, tags)


def _temperatures() -> Iterator[Measure]:
    for chip, sensors in psutil.sensors_temperatures().items():
        labels: Counter[str] = Counter()
        for sensor in sensors:
            label = sensor.label or "temperature"
            labels[label] += 1
            number = f" {labels[label]}" if labels[label] > 1 else ""
            yield Measure(
                "temperature_celsius", sensor.current, {"chip": chip, "sensor": _text(label + number)}
            )


def _fans() -> Iterator[Measure]:
    for chip, fans in psutil.sensors_fans().items():
        for number, fan in enumerate(fans, 1):
            yield Measure("fan_rpm", fan.current, {"chip": chip, "fan": _text(fan.label or str(number))})


def _battery() -> Iterator[Measure]:
    battery = psutil.sensors_battery()
    if battery is not None:
        yield Measure("battery_percent", round(battery.percent, 2))
        if battery.power_plugged is not None:
            yield Measure("battery_plugged", float(battery.power_plugged))


def _text(name: str) -> str:
    """Return a file system name as valid text."""
    return name.encode(errors="replace").decode()
