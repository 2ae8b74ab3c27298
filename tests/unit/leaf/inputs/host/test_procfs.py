"""What is read from /proc and the control groups, tried with folders of our own making."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from agent.leaf.inputs.host import procfs
from agent.leaf.inputs.host.procfs import Measure

PSI = "some avg10=1.50 avg60=0.10 avg300=0.02 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return laid_out(
        tmp_path / "proc",
        {
            "pressure/memory": PSI,
            "net/snmp": "Tcp: CurrEstab RetransSegs Other\nTcp: 14 7 -1\nUdp: InErrors\nUdp: 3\n",
            "net/sockstat": "sockets: used 69\nTCP: inuse 23 orphan 2 tw 262 mem 0\nUDP: inuse 0 mem 0\n",
            "self/cgroup": "4:memory:/other\n0::/system.slice/petiole.service\n",
            "loadavg": "9.38 7.59 7.28 5/505 7738\n",
            "meminfo": "MemTotal: 1000 kB\nSwapCached: 9 kB\nSwapTotal: 300 kB\nSwapFree: 100 kB\n",
            "sys/fs/file-nr": "2212\t0\t9223372036854775807\n",
            "12/stat": "",
            "13/stat": "",
        },
    )


def laid_out(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_pressure_is_told_by_resource_and_share(proc: Path) -> None:
    told = {(one.metric, one.tags["resource"], one.tags["share"]): one.value for one in procfs.pressure(proc)}
    assert told == {
        ("pressure_percent", "memory", "some"): 1.5,
        ("pressure_seconds", "memory", "some"): 2.5,
        ("pressure_percent", "memory", "full"): 0.0,
        ("pressure_seconds", "memory", "full"): 0.0,
    }


def test_pressure_that_is_switched_off_is_no_problem(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(_path: str) -> str:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(procfs, "_text", off)
    assert list(procfs.pressure(proc)) == []


@pytest.mark.parametrize(
    ("group", "measured"),
    [
        (
            procfs.sockets,
            {
                "tcp_connections": 14,
                "tcp_retransmitted_segments": 7,
                "udp_receive_errors": 3,
                "tcp_time_wait": 262,
                "tcp_orphans": 2,
            },
        ),
        (
            procfs.system,
            {
                "processes": 2,
                "threads": 505,
                "threads_running": 5,
                "open_files": 2212,
                "open_files_limit": float(2**63 - 1),
            },
        ),
        (procfs.swap, {"swap_total_bytes": 307_200, "swap_used_bytes": 204_800}),
    ],
    ids=["sockets", "system", "swap"],
)
def test_what_the_kernel_counts_becomes_a_measure_each(
    proc: Path, group: Callable[[Path], Iterator[Measure]], measured: dict[str, float]
) -> None:
    assert {measure.metric: measure.value for measure in group(proc)} == measured


def test_a_machine_without_swap_has_no_measure_of_it(proc: Path) -> None:
    (proc / "meminfo").write_text("MemTotal: 1000 kB\n")
    assert list(procfs.swap(proc)) == []


@pytest.mark.parametrize("where", ["system.slice/petiole.service", "."])
def test_a_container_is_told_by_its_limits_and_what_it_uses(tmp_path: Path, proc: Path, where: str) -> None:
    files = {
        "memory.current": "1048576\n",
        "memory.max": "2097152\n",
        "pids.current": "3\n",
        "pids.max": "max\n",
        "cpu.max": "150000 100000\n",
        "cpu.stat": "usage_usec 5000000\nnr_throttled 3\nthrottled_usec 250000\n",
        "memory.events": "low 0\noom_kill 2\n",
    }
    groups = laid_out(tmp_path / "groups", {f"{where}/{name}": text for name, text in files.items()})
    assert {one.metric: one.value for one in procfs.container(groups, proc)} == {
        "cgroup_memory_bytes": 2**20,
        "cgroup_memory_limit_bytes": 2**21,
        "cgroup_processes": 3,
        "cgroup_cpu_limit_cores": 1.5,
        "cgroup_cpu_seconds": 5.0,
        "cgroup_throttled_seconds": 0.25,
        "cgroup_oom_kills": 2,
    }


def test_where_there_are_no_such_control_groups_nothing_is_told(tmp_path: Path) -> None:
    assert list(procfs.container(tmp_path / "none", tmp_path / "none")) == []
