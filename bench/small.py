"""Small requests: one reading each over HTTP, answered when a server that syncs every message has stored it,
with 1, 16 and 120 connections that each wait for their answer.

Beside it, on the same server and in turns with it: nats-py that publishes the same reading to JetStream as a
message of its own, from as many tasks that each wait for their PubAck. It serves no HTTP, validates nothing
and has one connection. The load is a program in C, so that it leaves the cores to what is measured.
`batches_per_second` is out of the way: all of it is within what an agent may have at once, for as many rounds
as are played.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import nats

from agent import contract
from bench.agents import DOMAIN, HTTP_INPUT, Bench, leaf
from bench.load import body, cpu_seconds, http_load, request
from bench.result import Against, Result, Row, measuring, rounds

CONNECTIONS: Final = (1, 16, 120)
_WARM_SECONDS: Final = 0.5
_SECONDS: Final = 3.0
_P50_GOAL: Final = 3.0
_RATE_GOALS: Final = {1: 0.33, 16: 2.0, 120: 5.0}


@dataclass(frozen=True, slots=True)
class Turn:
    """One side in one round: requests or messages a second, those a CPU-second, and milliseconds."""

    rate: float
    a_cpu_second: float
    p50: float
    p99: float


def run() -> Result:
    count = rounds()
    with (
        measuring("small", {"rounds": str(count)}) as result,
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        leaf(Path(directory), HTTP_INPUT, max_bytes="16GiB", max_file_store="20GiB") as bench,
    ):
        bench.start()
        for connections in CONNECTIONS:
            with result.part(f"{connections} connections"):
                turns = [(_ours(bench, connections), _plain(bench, connections)) for _ in range(count)]
                result.rows += _rows(connections, turns)
    return result


def _rows(connections: int, turns: list[tuple[Turn, Turn]]) -> list[Row]:
    what = f"one reading a request, {connections} connection{'s' if connections > 1 else ''}"
    other = "nats-py, a synced publish" + (f", {connections} under way" if connections > 1 else "")

    def row(name: str, unit: str, of: Callable[[Turn], float], goal: float | None, *, least: bool) -> Row:
        against = Against(other, [of(theirs) for _, theirs in turns])
        return Row(f"{what}: {name}", [of(ours) for ours, _ in turns], unit, goal, against, least)

    p50_goal = _P50_GOAL if connections == 1 else None
    return [
        row("p50", "ms", lambda turn: turn.p50, p50_goal, least=True),
        row("p99", "ms", lambda turn: turn.p99, None, least=True),
        row("answered", "requests/s", lambda turn: turn.rate, _RATE_GOALS[connections], least=False),
        Row(
            f"{what}: by the agent's CPU",
            [ours.a_cpu_second for ours, _ in turns],
            "requests/CPU-second",
            None,
            Against(f"{other}, by its client's", [theirs.a_cpu_second for _, theirs in turns]),
        ),
    ]


def _ours(bench: Bench, connections: int) -> Turn:
    requests = [request(1, seed, "ndjson") for seed in range(64)]
    with http_load(bench.http_port, connections, requests) as load:
        time.sleep(_WARM_SECONDS)
        load.answered()
        before = cpu_seconds(bench.process)
        time.sleep(_SECONDS)
        used, answered = cpu_seconds(bench.process) - before, load.answered()
    return Turn(answered.requests / answered.seconds, answered.requests / used, answered.p50, answered.p99)


def _plain(bench: Bench, tasks: int) -> Turn:
    return asyncio.run(_published(bench, tasks))


async def _published(bench: Bench, tasks: int) -> Turn:
    prefix = contract.inbox_prefix(DOMAIN).encode()
    nc = await nats.connect(
        bench.url, nkeys_seed=str(bench.seed_file), inbox_prefix=prefix, allow_reconnect=False
    )
    js = nc.jetstream()
    subject = contract.direct_subject(DOMAIN, contract.DEFAULT_CLASS, "bench", "pressure")
    payload, took, ending = body(1, seed=1), list[float](), False

    async def publish() -> None:
        while not ending:
            began = time.monotonic()
            await js.publish(subject, payload)
            took.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(publish())
        await asyncio.sleep(_WARM_SECONDS)
        took.clear()
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(_SECONDS)
        seconds, used, ending = time.monotonic() - began, time.process_time() - used, True
        count, parts = len(took), quantiles(took, n=100)
    await nc.close()
    return Turn(count / seconds, count / used, 1000 * parts[49], 1000 * parts[98])
