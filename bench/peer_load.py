"""A load as fast as answers come, until all of it is at the hub: readings by the CPU-seconds of all processes
at the edge, and those that were answered and never arrived."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.load import FORMS, http_load, post, request
from bench.peer_sides import Opened, Side, open_side, petiole
from bench.result import Against, Result, Row

CONNECTIONS: Final = 16
LINES: Final = 500
_VARIANTS: Final = 16
_LOAD_SECONDS: Final = 4.0
_DRAIN_SECONDS: Final = 20.0
_QUIET_SECONDS: Final = 4.0

Loader = Callable[[int], AbstractContextManager[Callable[[], int]]]
"""Loads a port; gives how many readings were answered until now."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the others, and its loads by name."""

    name: str
    opened: Opened
    loads: dict[str, Loader]


@dataclass(slots=True)
class Turns:
    """What of its loads reached the hub, round by round."""

    a_cpu_second: list[float] = field(default_factory=list)
    a_second: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    missing: list[float] = field(default_factory=list)


async def measure(result: Result, peers: Sequence[Peer], rounds: int) -> None:
    """Add the rows. A peer that fails is noted and left out."""
    ours, theirs = Turns(), {name: Turns() for peer in peers for name in peer.loads}
    failed = set[str]()
    for _ in range(rounds):
        await _turn(petiole, ndjson, ours)
        for peer in peers:
            for name, loader in peer.loads.items():
                if name in failed:
                    continue
                failed.add(name)
                with result.part(f"load, {name}"):
                    await _turn(peer.opened, loader, theirs[name])
                    failed.discard(name)
    others = {name: turns for name, turns in theirs.items() if name not in failed}
    result.rows += _rows(ours, others)


def _rows(ours: Turns, others: dict[str, Turns]) -> list[Row]:
    found = "load, answered and at the hub"
    lost = "load: answered and not at the hub"
    return [
        *(
            Row(
                f"{found}, by the edge's CPU",
                ours.a_cpu_second,
                "readings/CPU-second",
                None,
                Against(name, other.a_cpu_second),
            )
            for name, other in others.items()
        ),
        *(
            Row(f"{found}, by the clock", ours.a_second, "readings/s", None, Against(name, other.a_second))
            for name, other in others.items()
        ),
        *(
            Row(
                lost,
                ours.missing,
                "readings",
                None,
                Against(f"{name} (of {sum(other.answered):,.0f})", other.missing),
                least=True,
                must=0,
            )
            for name, other in others.items()
        ),
        *(
            Row(
                "memory of the edge under load",
                ours.megabytes,
                "MB",
                None,
                Against(name, other.megabytes),
                least=True,
            )
            for name, other in others.items()
        ),
    ]


async def _turn(opened: Opened, loader: Loader, turns: Turns) -> None:
    async with open_side(opened, direct=True) as side:
        used, began = side.cpu(), time.monotonic()
        answered, megabytes = await asyncio.to_thread(_loaded, side, loader)
        missing = await _drained(side, answered)
        seconds, used, there = time.monotonic() - began, side.cpu() - used, side.seen.readings
        print(f"{side.name}: {answered:,} answered, {there:,} there after {seconds:.1f} s", flush=True)
    turns.a_cpu_second.append(there / used)
    turns.a_second.append(there / seconds)
    turns.megabytes.append(megabytes)
    turns.answered.append(answered)
    turns.missing.append(missing)


def _loaded(side: Side, loader: Loader) -> tuple[int, float]:
    """How many readings of a load were answered, and the memory of the edge at its end."""
    with loader(side.port) as answered:
        time.sleep(_LOAD_SECONDS)
        megabytes = side.megabytes()
        return answered(), megabytes


async def _drained(side: Side, answered: int) -> int:
    """Wait until what was answered is at the hub, or nothing more comes; how many readings are missing."""
    deadline, moved, before = time.monotonic() + _DRAIN_SECONDS, time.monotonic(), -1
    while side.seen.readings < answered:
        now = time.monotonic()
        if side.seen.readings != before:
            before, moved = side.seen.readings, now
        if now > deadline or now - moved > _QUIET_SECONDS:
            break
        await asyncio.sleep(0.05)
    return max(0, answered - side.seen.readings)


def ndjson(port: int) -> AbstractContextManager[Callable[[], int]]:
    """As Petiole takes readings."""
    return _http(port, [request(LINES, seed, "ndjson") for seed in range(_VARIANTS)])


def lines(port: int) -> AbstractContextManager[Callable[[], int]]:
    """As Telegraf takes them."""
    _, kind, make = FORMS["lines-1"]
    return _http(port, [post("/write", kind, make(LINES, seed)) for seed in range(_VARIANTS)])


def relp(readings: int) -> Loader:
    """As rsyslog takes them, so many a message."""

    @contextmanager
    def load(port: int) -> Iterator[Callable[[], int]]:
        command = [sys.executable, "-m", "bench.rsyslog", str(port), str(CONNECTIONS), str(readings)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield lambda: int(process.communicate("\n")[0]) * readings
            process.kill()

    return load


@contextmanager
def _http(port: int, requests: list[bytes]) -> Iterator[Callable[[], int]]:
    with http_load(port, CONNECTIONS, requests) as load:
        yield lambda: load.answered().requests * LINES
