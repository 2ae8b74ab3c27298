"""What an agent costs that has little to do: memory and CPU of an idle leaf with host metrics each second,
with a backlog of 2 GB, and after a SIGKILL and a start on that backlog. The NATS server is a process of its
own and not counted.

The yardstick, at the same time, is a Python with the agent's libraries that takes the same metrics each
second and does nothing with them (`bench.bare`). Beside both, in the same run and where it is installed,
Debian's collectd, a program in C: about the same groups of metrics each second, written to files that are not
synced, and sent nowhere.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import nats
import psutil

from agent import contract
from agent.contract import BatchHeaders, Clock, MessageId
from bench.agents import DOMAIN, Bench, leaf
from bench.load import cpu_percent
from bench.result import Against, Result, Row, measuring

_PLUGINS: Final = (
    "cpu",
    "df",
    "disk",
    "fhcount",
    "interface",
    "load",
    "memory",
    "processes",
    "protocols",
    "swap",
    "thermal",
    "uptime",
    "csv",
)
_END_SECONDS: Final = 20.0


def installed() -> bool:
    """Whether Debian's collectd is here."""
    return shutil.which("collectd") is not None


@contextmanager
def collectd(directory: Path) -> Iterator[psutil.Process]:
    """The daemon with its files in a directory."""
    directory.mkdir()
    config = directory / "collectd.conf"
    config.write_text(
        "Interval 1\n"
        f'BaseDir "{directory}"\nPIDFile "{directory / "pid"}"\n'
        + "".join(f"LoadPlugin {name}\n" for name in _PLUGINS)
        + f'<Plugin csv>\n  DataDir "{directory / "values"}"\n</Plugin>\n'
    )
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(["collectd", "-f", "-C", str(config)], stdout=log, stderr=log)
    try:
        yield psutil.Process(daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait(_END_SECONDS)


_SETTLE_SECONDS = 10.0
_IDLE_SECONDS = 20.0
_BACKLOG_BYTES = 2 * 10**9
_MESSAGE_BYTES = 32 * 1024
_WINDOW = 256
_YARDSTICK = "Python with its libraries that samples, nothing else"
_RSS_GOAL = 1.3
_CPU_GOAL = 3.5

_INPUTS = """
[[input]]
type = "host"
interval = "1s"

[[input]]
type = "http"
listen = "127.0.0.1:{http_port}"
"""


def run() -> Result:
    """Measure an idle agent, the same with a backlog, and one started anew on it."""
    with (
        measuring("footprint") as result,
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        leaf(Path(directory), _INPUTS, max_bytes="3GiB") as bench,
    ):
        bare = stack.enter_context(_bare())
        bench.start()
        time.sleep(_SETTLE_SECONDS)
        (cpu, idle), (bare_cpu, bare_rss) = _watch(bench.process, bare)
        yardstick = Against(_YARDSTICK, bare_rss)
        theirs = _collectd(Path(directory) / "collectd")
        beside = [None if theirs is None else Against("collectd", one) for one in theirs or (0, 0)]
        what = "idle, host metrics each second"
        bare_beside = Against(_YARDSTICK, bare_cpu)
        result.rows.append(Row(f"{what}: CPU", cpu, "% of a core", _CPU_GOAL, bare_beside, least=True))
        if beside[0] is not None:
            result.rows.append(Row(f"{what}: CPU", cpu, "% of a core", None, beside[0], least=True))
        result.rows.append(Row(f"{what}: RSS", idle, "MB", _RSS_GOAL, yardstick, least=True))
        if beside[1] is not None:
            result.rows.append(Row(f"{what}: RSS", idle, "MB", None, beside[1], least=True))
        asyncio.run(_fill(bench))
        ((_, backlog),) = _watch(bench.process)
        result.rows.append(Row("2 GB of backlog: RSS", backlog, "MB", _RSS_GOAL, yardstick, least=True))
        bench.kill()
        ready = bench.start()
        ((_, restarted),) = _watch(bench.process)
        result.rows += [
            Row("2 GB of backlog, killed and started: ready", ready, "s", least=True),
            Row(
                "2 GB of backlog, killed and started: RSS",
                restarted,
                "MB",
                _RSS_GOAL,
                yardstick,
                least=True,
            ),
        ]
    return result


def _watch(*processes: psutil.Process) -> list[tuple[float, float]]:
    """Per cent of a core over `_IDLE_SECONDS`, and RSS in MB at its end, of each."""
    percent = cpu_percent(processes, _IDLE_SECONDS)
    return [(cpu, process.memory_info().rss / 1e6) for cpu, process in zip(percent, processes, strict=True)]


@contextmanager
def _bare() -> Iterator[psutil.Process]:
    """The yardstick, running."""
    with subprocess.Popen([sys.executable, "-m", "bench.bare"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)


def _collectd(directory: Path) -> tuple[float, float] | None:
    """The same of collectd; None where it is not installed."""
    if not installed():
        return None
    with collectd(directory) as process:
        time.sleep(_SETTLE_SECONDS)
        (watched,) = _watch(process)
    return watched


async def _fill(bench: Bench) -> None:
    """Put batches of incompressible bytes into the stream, as an input of another run would have."""
    nc = await nats.connect(
        bench.url, nkeys_seed=str(bench.seed_file), inbox_prefix=contract.inbox_prefix(DOMAIN).encode()
    )
    subject = contract.batch_subject(DOMAIN, contract.DEFAULT_CLASS, "http")
    run, window = contract.new_run(), asyncio.Semaphore(_WINDOW)
    js = nc.jetstream(timeout=30)

    async def put(n: int) -> None:
        ident = MessageId(run, contract.DEFAULT_CLASS, n)
        headers = BatchHeaders(ident, 500, time.time_ns(), Clock(True, "bench", n)).encode()
        async with window:
            await js.publish(subject, os.urandom(_MESSAGE_BYTES), headers=headers)

    async with asyncio.TaskGroup() as group:
        for n in range(1, _BACKLOG_BYTES // _MESSAGE_BYTES + 1):
            group.create_task(put(n))
    await nc.close()
