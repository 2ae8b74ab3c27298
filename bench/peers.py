"""Petiole beside rsyslog 8 as Debian packages it, one after the other: each takes readings at the edge,
acknowledges each when it is in its queue, forwards them over one TCP link, and the hub has them on disk,
synced.

What they do is alike and not the same. Petiole takes NDJSON over HTTP, validates it and compresses it, and
its agent and its leaf's nats-server count together; rsyslog takes messages over RELP and does not look into
them, and its edge is one daemon. Both have 8,000 readings under way on 16 connections. rsyslog's *synced*
queue keeps the promise that Petiole makes, on disk and synced before the answer: once with a reading a
message, once with 500. Its *documented* queue is what its documents show for reliable forwarding: in memory,
and saved at a shutdown.

The load is as fast as answers come, then the backlog drains, for a minute at most: readings that reached the
hub by the CPU-seconds of the edge, and by the clock. The faults come at 100 readings a second, or what is
taken of them, each sent again until it is acknowledged: the link cut for 10 s; every process at the edge
SIGKILLed and started; and the second within the first. Lost: acknowledged, and not at the hub in the end.
Doubled: more than once in the hub's stream or file; Petiole's table would drop those.

Needs the packages `rsyslog` and `rsyslog-relp`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from bench import rsyslog
from bench.peer_sides import Side, petiole
from bench.peer_sides import rsyslog as rsyslog_side
from bench.relink_load import Load
from bench.result import Against, Result, Row

CONNECTIONS: Final = 16
LINES: Final = 500
_LOAD_SECONDS: Final = 10.0
_DRAIN_SECONDS: Final = 60.0
_RATE: Final = 100.0
_ATTEMPT_SECONDS: Final = 60.0
"""What is slow to sync is not to be sent again for that: it would never catch up."""
_AFTER_SECONDS: Final = 5.0
_QUIET_SECONDS: Final = 20.0
_FAULT_SECONDS: Final = 120.0
_FAULTS: Final = ("link cut 10 s", "edge SIGKILL", "edge SIGKILL while the link is cut")


@dataclass(frozen=True, slots=True)
class Throughput:
    """What of a load reached the hub."""

    a_cpu_second: float
    a_second: float
    megabytes: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One fault: how many readings were acknowledged since it began, and what became of them."""

    acknowledged: int
    lost: int
    doubled: int
    seconds: float


class Opened(Protocol):
    """Opens a side in a directory; `direct` without a proxy in its link, which then cannot be cut."""

    def __call__(self, directory: Path, *, direct: bool) -> AbstractAsyncContextManager[Side]: ...


Loader = Callable[[int], tuple[list[str], int]]
"""The command of a load for a port, and how many readings each acknowledgement that it counts is for."""


def run() -> Result:
    """Measure both. Raises `RuntimeError` where rsyslog is not installed."""
    if (why := rsyslog.missing()) is not None:
        raise RuntimeError(why)
    return asyncio.run(_run())


async def _run() -> Result:
    synced = partial(rsyslog_side, queue="synced")
    documented = partial(rsyslog_side, queue="documented")
    ours = await _throughput(petiole, _http)
    peers = {
        "rsyslog, synced queue, a reading a message": await _throughput(synced, _relp(1)),
        f"rsyslog, synced queue, {LINES} readings a message": await _throughput(synced, _relp(LINES)),
        "rsyslog, documented queue, a reading a message": await _throughput(documented, _relp(1)),
    }
    faults = {
        "Petiole": await _faults(petiole),
        "rsyslog, synced queue": await _faults(synced),
        "rsyslog, documented queue": await _faults(documented),
    }
    rows = [row for name, peer in peers.items() for row in _compared(ours, name, peer)]
    rows.sort(key=lambda row: row.what)
    return Result("peers", rows + _fault_rows(faults), {"rsyslog": rsyslog.version()})


def _compared(ours: Throughput, name: str, peer: Throughput) -> list[Row]:
    at_hub = "load, acknowledged and at the hub"
    return [
        Row(
            f"{at_hub}, by the edge's CPU",
            ours.a_cpu_second,
            "readings/CPU-second",
            None,
            Against(name, peer.a_cpu_second),
        ),
        Row(f"{at_hub}, by the clock", ours.a_second, "readings/s", None, Against(name, peer.a_second)),
        Row(
            "memory of the edge under load",
            ours.megabytes,
            "MB",
            None,
            Against(name, peer.megabytes),
            least=True,
        ),
    ]


def _fault_rows(faults: dict[str, list[Outcome]]) -> list[Row]:
    ours, rows = faults.pop("Petiole"), []
    for number, fault in enumerate(_FAULTS):
        mine = ours[number]
        others = {name: outcomes[number] for name, outcomes in faults.items()}
        what = f"{fault}, {mine.acknowledged} readings acknowledged"
        after = f"{fault}: after it, until all that was acknowledged in it is at the hub"
        for name, other in others.items():
            against = Against(f"{name} ({other.acknowledged} acknowledged)", other.lost)
            rows.append(Row(f"{what}: lost", mine.lost, "readings", 0, against, least=True))
        for name, other in others.items():
            against = Against(f"{name} ({other.acknowledged} acknowledged)", other.doubled)
            rows.append(Row(f"{what}: doubled", mine.doubled, "readings", None, against, least=True))
        for name, other in others.items():
            rows.append(Row(after, mine.seconds, "s", None, Against(name, other.seconds), least=True))
    return rows


async def _throughput(opened: Opened, loader: Loader) -> Throughput:
    async with _open(opened, direct=True) as side:
        used, began = side.cpu(), time.monotonic()
        answered, megabytes = await asyncio.to_thread(_loaded, side, *loader(side.port))
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while side.seen.readings < answered:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
        seconds, used, there = time.monotonic() - began, side.cpu() - used, side.seen.readings
        print(f"{side.name}: {answered:,} acknowledged, {there:,} there after {seconds:.1f} s", flush=True)
    return Throughput(there / used, there / seconds, megabytes)


def _loaded(side: Side, command: list[str], each: int) -> tuple[int, float]:
    """How many readings of a load were acknowledged, and the memory of the edge at its end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
        time.sleep(_LOAD_SECONDS)
        megabytes = side.megabytes()
        told, _ = load.communicate("\n")
    return int(told) * each, megabytes


async def _faults(opened: Opened) -> list[Outcome]:
    async with _open(opened, direct=False) as side:
        side.seen.numbered = True
        load, marks, mended = Load(side.send, _RATE, _ATTEMPT_SECONDS), [1], []
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(load.run())
            await asyncio.sleep(3.0)
            for fault in _FAULTS:
                print(f"{side.name}: {fault}", flush=True)
                marks.append(load.sent + 1)
                await _make(side, fault)
                mended.append((time.time(), set(load.acknowledged)))
                await asyncio.sleep(_AFTER_SECONDS)
                await _settled(side, load)
            load.stop()
            await asyncio.wait([loading], timeout=_FAULT_SECONDS)
            loading.cancel()
        await _settled(side, load)
        return [
            _outcome(side, load, range(first, after), *one)
            for first, after, one in zip(marks[1:], [*marks[2:], load.sent + 1], mended, strict=True)
        ]


async def _make(side: Side, fault: str) -> None:
    """Make a fault and mend it again."""
    if "cut" in fault:
        side.proxy.cut()
        await asyncio.sleep(5.0)
    if "SIGKILL" in fault:
        await asyncio.to_thread(side.kill)
        await asyncio.to_thread(side.start)
    if "cut" in fault:
        await asyncio.sleep(5.0)
        side.proxy.restore()


async def _settled(side: Side, load: Load) -> None:
    """Wait until what is acknowledged by now is at the hub, or nothing of it comes any more."""
    wanted = set(load.acknowledged)
    deadline, moved, before = time.monotonic() + _FAULT_SECONDS, time.monotonic(), -1
    while time.monotonic() < deadline and time.monotonic() - moved < _QUIET_SECONDS:
        missing = len(wanted - side.seen.counts.keys())
        if not missing:
            return
        if missing != before:
            moved, before = time.monotonic(), missing
        await asyncio.sleep(0.1)


def _outcome(side: Side, load: Load, span: range, mended: float, before: set[int]) -> Outcome:
    """What became of these numbers; `before` are those that were acknowledged when the fault was mended."""
    acknowledged = [number for number in span if number in load.acknowledged]
    counts, first = side.seen.counts, side.seen.first
    lost = sum(not counts[number] for number in acknowledged)
    doubled = sum(counts[number] > 1 for number in span)
    late = [first[number] - mended for number in acknowledged if number in first and number in before]
    return Outcome(len(acknowledged), lost, doubled, max(0.0, max(late, default=0.0)))


@asynccontextmanager
async def _open(opened: Opened, *, direct: bool) -> AsyncIterator[Side]:
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        async with opened(Path(directory), direct=direct) as side:
            yield side


def _http(port: int) -> tuple[list[str], int]:
    return [sys.executable, "-m", "bench.load", str(port), str(CONNECTIONS), str(LINES), "ndjson"], LINES


def _relp(readings: int) -> Loader:
    command = [sys.executable, "-m", "bench.relp"]
    return lambda port: ([*command, str(port), str(CONNECTIONS), str(readings)], readings)
