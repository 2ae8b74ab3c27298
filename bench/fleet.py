"""A fleet after its hub was killed: how long until the last of all sources is caught up, and what the
registrar costs meanwhile. Ten real leaf servers with a real agent each, as many classes each as the row says.
Beside it, in the same servers, as many streams of raw JetStream with durable sources, left alone.

Every stream gets messages while the hub is away, so that every source has something to catch up with. From
the moment at which the hub's process is started.

`ROUNDS=1 python -m bench fleet` for fewer than three.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client

from agent.contract import aggregate, direct_subject, leaf_stream
from agent.jetstream import JetStream, JetStreamError
from bench.relink_raw import RawStream, make_at_hub, make_at_leaf
from bench.relink_world import LinkWorld, link_world
from bench.result import Against, Result, Row

_LEAVES = 10
_SIZES = ((30, 1, 3.0), (100, 1, 6.0))
"""Classes a leaf, aggregates, and the goal in seconds."""
_ROUNDS = 3
_AWAY_SECONDS = 3.0
_MESSAGES = 3
_IDLE_SECONDS = 20.0
_LOOK_SECONDS = 0.03
_WAIT_SECONDS = 300.0


@dataclass(slots=True)
class Half:
    """The product's sources, or those of raw JetStream: where each message goes in and where it arrives.
    `subjects` is by stream of a leaf's domain, `aggregates` are the hub's streams."""

    name: str
    hub: Client
    leaves: dict[str, Client]
    subjects: dict[str, dict[str, str]]
    aggregates: list[str]
    seconds: list[float] = field(default_factory=list)

    async def publish(self) -> None:
        """The same messages to every stream, each awaited."""
        for domain, subjects in self.subjects.items():
            for _ in range(_MESSAGES):
                await asyncio.gather(*(_put(self.leaves[domain], subject) for subject in subjects.values()))

    async def last(self, readers: dict[str, Client]) -> dict[str, int]:
        """The newest sequence of every stream."""
        found: dict[str, int] = {}
        for domain, subjects in self.subjects.items():
            js = JetStream(readers[domain], timeout=10.0)
            infos = await asyncio.gather(*(js.stream_info(name) for name in subjects))
            found |= {info.name: info.last for info in infos}
        return found

    async def cursors(self) -> tuple[dict[str, int], int]:
        """How far the hub holds each stream, and how many messages it holds in all."""
        js, held = JetStream(self.hub, timeout=1.0), 0
        found: dict[str, int] = {}
        for name in self.aggregates:
            info = await js.stream_info(name)
            held += info.messages
            found |= {one["name"]: one.get("seq", 0) for one in info.sources}
        return found, held

    async def caught_up(self, targets: dict[str, int]) -> float:
        """When the last source had reached its target, in seconds since 1970."""
        deadline = time.monotonic() + _WAIT_SECONDS
        behind: dict[str, int] = targets
        while time.monotonic() < deadline:
            try:
                found, _ = await self.cursors()
            except (JetStreamError, nats.errors.Error, OSError):
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            behind = {name: seq for name, seq in targets.items() if found.get(name, 0) < seq}
            if not behind:
                return time.time()
            await asyncio.sleep(_LOOK_SECONDS)
        some = ", ".join(sorted(behind)[:5])
        raise RuntimeError(f"{self.name}: after {_WAIT_SECONDS:.0f} s {len(behind)} sources lag, as {some}")


def run() -> Result:
    """Measure both sizes."""
    rounds = int(os.environ.get("ROUNDS", _ROUNDS))
    return Result("fleet", [row for size in _SIZES for row in asyncio.run(_size(*size, rounds))])


async def _size(classes: int, aggregates: int, goal: float, rounds: int) -> list[Row]:
    async with _fleet(classes, aggregates) as (world, ours, raw, readers):
        sources = classes * _LEAVES
        named = f"{sources} sources in {aggregates} aggregates of {_LEAVES} leaf servers with an agent each"
        idle = await _cpu(world, _IDLE_SECONDS)
        busy = []
        for number in range(rounds):
            print(f"{sources} sources, round {number + 1} of {rounds}", flush=True)
            busy.append(await _round(world, (ours, raw), readers))
        lost, doubled = await _count(ours, readers)
        rss = world.registrar.process.memory_info().rss / 1e6
    what = f"{named}: hub SIGKILL, the last is caught up after the hub's process starts"
    beside = Against("raw durable sources, left alone, slowest round", max(raw.seconds))
    return [
        Row(f"{what}, slowest of {rounds} rounds", max(ours.seconds), "s", goal, beside, least=True),
        Row(f"{what}, fastest", min(ours.seconds), "s", goal, Against("raw", min(raw.seconds)), least=True),
        Row(f"{named}: lost", lost, "messages", 0, least=True),
        Row(f"{named}: doubled", doubled, "messages", 0, least=True),
        Row(f"{named}: registrar, CPU at rest", idle, "% of a core"),
        Row(f"{named}: registrar, CPU for one hub SIGKILL, most", max(busy), "CPU-seconds"),
        Row(f"{named}: registrar, RSS", rss, "MB"),
    ]


async def _round(world: LinkWorld, halves: tuple[Half, Half], readers: list[dict[str, Client]]) -> float:
    """Kill the hub, publish, start it; returns the registrar's CPU-seconds until all is caught up."""
    world.hub.kill()
    away = time.monotonic() + _AWAY_SECONDS
    for half in halves:
        await half.publish()
    targets = [await half.last(reader) for half, reader in zip(halves, readers, strict=True)]
    await asyncio.sleep(away - time.monotonic())
    before = _used(world)
    began = world.hub.start()
    ends = await asyncio.gather(*(half.caught_up(one) for half, one in zip(halves, targets, strict=True)))
    for half, end in zip(halves, ends, strict=True):
        half.seconds.append(end - began)
    used = _used(world) - before
    await asyncio.sleep(5.0)  # so that the next round does not begin in the retries of this one
    return used


async def _count(ours: Half, readers: list[dict[str, Client]]) -> tuple[int, int]:
    """Lost and doubled messages: the hub holds each sequence of every stream once, if it holds as many as
    there are."""
    targets = await ours.last(readers[0])
    await ours.caught_up(targets)
    _, held = await ours.cursors()
    surplus = held - sum(targets.values())
    return max(0, -surplus), max(0, surplus)


async def _cpu(world: LinkWorld, seconds: float) -> float:
    before = _used(world)
    await asyncio.sleep(seconds)
    return 100 * (_used(world) - before) / seconds


def _used(world: LinkWorld) -> float:
    times = world.registrar.process.cpu_times()
    return times.user + times.system


async def _put(nc: Client, subject: str) -> None:
    await nc.request(subject, b"1", timeout=30)


@asynccontextmanager
async def _fleet(
    classes: int, aggregates: int
) -> AsyncIterator[tuple[LinkWorld, Half, Half, list[dict[str, Client]]]]:
    """The running fleet, with all sources known to the hub."""
    domains = [f"edge-{number}" for number in range(_LEAVES)]
    names = tuple(f"c{number}" for number in range(classes))
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-")))
        world = stack.enter_context(link_world(directory, domains, names, aggregates=aggregates))
        world.hub.start()
        for leaf in world.leaves.values():
            leaf.start()
        await asyncio.sleep(2.0)
        world.registrar.start()
        for agent in world.agents.values():
            await asyncio.to_thread(agent.start)

        async def client(making: Any) -> Client:
            nc: Client = await making
            stack.push_async_callback(nc.close)
            return nc

        devices = {d: await client(leaf.ours("device", "device")) for d, leaf in world.leaves.items()}
        agents = {d: await client(leaf.ours("agent", d)) for d, leaf in world.leaves.items()}
        raws = {d: await client(leaf.raw()) for d, leaf in world.leaves.items()}
        ours = Half(
            "Petiole",
            await client(world.hub.ours("jobs", "jobs")),
            devices,
            {d: {leaf_stream(d, c): direct_subject(d, c, "bench", "n") for c in names} for d in domains},
            [aggregate(number) for number in range(aggregates)],
        )
        raw = Half("raw durable", await client(world.hub.raw()), raws, {}, [])
        await _make_raw(raw, domains, classes, aggregates)
        for half, readers in ((ours, agents), (raw, raws)):
            await half.publish()
            await half.caught_up(await half.last(readers))
        yield world, ours, raw, [agents, raws]


async def _make_raw(raw: Half, domains: list[str], classes: int, aggregates: int) -> None:
    streams = [
        RawStream(domain, f"{domain}_{number}", "durable") for domain in domains for number in range(classes)
    ]
    for domain in domains:
        mine = [one for one in streams if one.domain == domain]
        await make_at_leaf(raw.leaves[domain], mine)
        raw.subjects[domain] = {one.name: one.subject for one in mine}
    for number in range(aggregates):
        raw.aggregates.append(f"RAW_{number}")
        await make_at_hub(raw.hub, f"RAW_{number}", streams[number::aggregates])
