"""Reads measures from /proc and /sys of Linux. Missing files give no measure."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
_RESOURCES: Final = ("cpu", "memory", "io")
_SOCKETS: Final = {
    ("Tcp", "CurrEstab"): "tcp_connections",
    ("Tcp", "RetransSegs"): "tcp_retransmitted_segments",
    ("Tcp", "AttemptFails"): "tcp_failed_attempts",
    ("Udp", "NoPorts"): "udp_unclaimed_datagrams",
    ("Udp", "InErrors"): "udp_receive_errors",
    ("Udp", "RcvbufErrors"): "udp_receive_buffer_errors",
    ("Udp", "SndbufErrors"): "udp_send_buffer_errors",
}
"""Names by RFC 1213."""
_OFF: Final = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_WAITING: Final = {"tw": "tcp_time_wait", "orphan": "tcp_orphans"}


class Measure(NamedTuple):
    metric: str
    value: float
    tags: Mapping[str, str] = {}


def system(proc: Path = PROC) -> Iterator[Measure]:
    """Return processes, threads and open files of the machine."""
    yield Measure("processes", sum(name.isdigit() for name in os.listdir(proc)))  # noqa: PTH208 - faster
    running, _, threads = _text(f"{proc}/loadavg").split()[3].partition("/")
    yield Measure("threads", int(threads))
    yield Measure("threads_running", int(running))
    opened, _, most = _text(f"{proc}/sys/fs/file-nr").split()
    yield Measure("open_files", int(opened))
    yield Measure("open_files_limit", float(most))


def pressure(proc: Path = PROC) -> Iterator[Measure]:
    """Return resource stalls: Documentation/accounting/psi.rst of Linux."""
    for resource in _RESOURCES:
        for line in _read(f"{proc}/pressure/{resource}").splitlines():
            share, *pairs = line.split()
            values = dict(pair.split("=") for pair in pairs)
            tags = {"resource": resource, "share": share}
            yield Measure("pressure_percent", float(values["avg10"]), tags)
            yield Measure("pressure_seconds", int(values["total"]) / 1e6, tags)


def sockets(proc: Path = PROC) -> Iterator[Measure]:
    """Return connections and errors over IPv4 and IPv6 (UDP: IPv4)."""
    counted = _tables(_read(f"{proc}/net/snmp"))
    for (protocol, name), metric in _SOCKETS.items():
        if name in counted.get(protocol, {}):
            yield Measure(metric, counted[protocol][name])
    for line in _read(f"{proc}/net/sockstat").splitlines():
        kind, *words = line.split()
        if kind == "TCP:":
            values = dict(zip(words[::2], words[1::2], strict=False))
            for name, metric in _WAITING.items():
                if name in values:
                    yield Measure(metric, int(values[name]))


def container(cgroups: Path = CGROUPS, proc: Path = PROC) -> Iterator[Measure]:
    """Return use and limits of the agent's cgroup v2: Documentation/admin-guide/cgroup-v2 of Linux."""
    own = next(
        (line[3:] for line in _read(f"{proc}/self/cgroup").splitlines() if line.startswith("0::")), "/"
    )
    folder = cgroups / own.strip("/")
    if not (folder / "memory.current").exists():
        folder = cgroups  # with a namespace of its own a container sees its group as the root
    files = {
        "memory.current": "cgroup_memory_bytes",
        "memory.max": "cgroup_memory_limit_bytes",
        "pids.current": "cgroup_processes",
        "pids.max": "cgroup_processes_limit",
    }
    for name, metric in files.items():
        text = _read(f"{folder}/{name}").strip()
        if text.isdigit():
            yield Measure(metric, int(text))
    quota, _, period = _read(f"{folder}/cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit():
        yield Measure("cgroup_cpu_limit_cores", int(quota) / int(period))
    spent = _pairs(_read(f"{folder}/cpu.stat"))
    for name, metric in (
        ("usage_usec", "cgroup_cpu_seconds"),
        ("throttled_usec", "cgroup_throttled_seconds"),
    ):
        if name in spent:
            yield Measure(metric, spent[name] / 1e6)
    killed = _pairs(_read(f"{folder}/memory.events")).get("oom_kill")
    if killed is not None:
        yield Measure("cgroup_oom_kills", killed)


def swap(proc: Path = PROC) -> Iterator[Measure]:
    """Return swap space; psutil needs ten times the work."""
    words = _text(f"{proc}/meminfo").split()
    if "SwapTotal:" in words:
        total, free = (1024 * int(words[words.index(name) + 1]) for name in ("SwapTotal:", "SwapFree:"))
        yield Measure("swap_total_bytes", total)
        yield Measure("swap_used_bytes", total - free)


def _text(path: str) -> str:
    """Read a kernel file in one read, cheaper than `Path.read_text`."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read().decode()


def _read(path: str) -> str:
    """Read a file; "" when missing or disabled."""
    try:
        return _text(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if error.errno in _OFF:
            return ""
        raise


def _pairs(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}


def _tables(text: str) -> dict[str, dict[str, int]]:
    """Parse line pairs of names and values after `Protocol:`."""
    lines = [line.split() for line in text.splitlines() if line]
    return {
        names[0].rstrip(":"): {name: int(value) for name, value in zip(names[1:], values[1:], strict=False)}
        for names, values in zip(lines[::2], lines[1::2], strict=False)
    }
