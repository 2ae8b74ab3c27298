"""A fleet after its hub was killed: how long until the last of all sources is caught up, and what the
registrar costs meanwhile. Ten real leaf servers with a real agent each, as many classes each as the row says.
Beside it, in turns with it, for two such fleets at once are more than this machine carries: as many leaf
servers and streams of raw JetStream, durable sources, left alone, without any agent.

Every stream gets a message while the hub is away, so that every source has something to catch up with; the
hub syncs its disk for each. From the moment at which the hub's process is started.

One round tells little on a machine that does other work: there the last of a thousand sources came after 11
to 19 s, and twice after 38 and 81 s. On a quiet one rounds differ by a tenth.

`ROUNDS=1 python -m bench fleet` for fewer than three, `SOURCES=300` for one of the sizes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from agent.contract import H_SOURCE, aggregate, direct_subject, leaf_stream
from agent.hub.registrar.aggregate import parse_source_header
from agent.jetstream import JetStream, JetStreamError
from bench.load import cpu_seconds
from bench.relink_world import LinkWorld, RawStream, link_world, make_at_hub, make_at_leaf
from bench.result import Against, Result, Row, measuring
from bench.result import rounds as rounds_to_play

_LEAVES = 10
_SIZES = ((30, 2, 3.0), (100, 5, 6.0), (200, 10, 10.0))
"""Classes a leaf, aggregates, and at most how many seconds until the last source is caught up."""
_TIMES = 1.0
"""Never later than raw sources."""
_ROUNDS = 3
_AWAY_SECONDS = 3.0
_IDLE_SECONDS = 20.0
_LOOK_SECONDS = 0.03
_WAIT_SECONDS = 120.0
_AT_ONCE = 200


@dataclass(slots=True)
class Half:
    """The product's fleet, or that of raw JetStream: by domain, who publishes, who may look at streams, and
    each stream with its subject; `aggregates` are the hub's streams."""

    name: str
    hub: Client
    publishers: dict[str, Client]
    readers: dict[str, Client]
    subjects: dict[str, dict[str, str]]
    aggregates: list[str]
    seconds: list[float] = field(default_factory=list)
    lagging: int = 0
    """How many sources were given up: raw ones that the hub's server takes nothing of stay so for ever."""

    async def publish(self) -> None:
        """A message to every stream, each awaited."""
        for domain, subjects in self.subjects.items():
            nc = self.publishers[domain]
            await asyncio.gather(*(_put(nc, subject) for subject in subjects.values()))

    async def last(self) -> dict[str, int]:
        """The newest sequence of every stream."""
        found: dict[str, int] = {}
        for domain, subjects in self.subjects.items():
            js = JetStream(self.readers[domain], timeout=10.0)
            infos = await asyncio.gather(*(js.stream_info(name) for name in subjects))
            found |= {info.name: info.last for info in infos}
        return found

    async def cursors(self) -> dict[str, int]:
        """How far the hub holds each stream."""
        js = JetStream(self.hub, timeout=1.0)
        found: dict[str, int] = {}
        for name in self.aggregates:
            info = await js.stream_info(name)
            found |= {one["name"]: one.get("seq", 0) for one in info.sources}
        return found

    async def caught_up(self, targets: dict[str, int]) -> float:
        """When the last source had reached its target, in seconds since 1970."""
        deadline = time.monotonic() + _WAIT_SECONDS
        behind: dict[str, int] = targets
        while time.monotonic() < deadline:
            try:
                found = await self.cursors()
            except (JetStreamError, nats.errors.Error, OSError):
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            behind = {name: seq for name, seq in targets.items() if found.get(name, 0) < seq}
            if not behind:
                return time.time()
            await asyncio.sleep(_LOOK_SECONDS)
        self.lagging += len(behind)
        some = ", ".join(sorted(behind)[:5])
        print(f"{self.name}: after {_WAIT_SECONDS:.0f} s {len(behind)} sources lag, as {some}", flush=True)
        return time.time()


def run() -> Result:
    rounds = rounds_to_play(_ROUNDS)
    sizes = [
        size for size in _SIZES if os.environ.get("SOURCES", str(size[0] * _LEAVES)) == str(size[0] * _LEAVES)
    ]
    with measuring("fleet", {"rounds": str(rounds)}) as result:
        for size in sizes:
            with result.part(f"{size[0] * _LEAVES} sources"):
                result.rows += asyncio.run(_size(*size, rounds))
    return result


async def _size(classes: int, aggregates: int, most: float, rounds: int) -> list[Row]:
    sources = classes * _LEAVES
    named = f"{sources} sources in {aggregates} aggregates, {_LEAVES} leaf servers with an agent each"
    played = []
    raw: list[float] = []
    lagging = 0
    for number in range(rounds):
        print(f"{sources} sources, round {number + 1} of {rounds}", flush=True)
        played.append(await _ours_killed(classes, aggregates))
        print(f"  {played[-1]}", flush=True)
        async with _servers(classes, aggregates) as (servers, stack):
            half = await _raw(servers, stack, classes, aggregates)
            await _round(servers, half)
        raw += half.seconds
        lagging += half.lagging
        print(f"  raw: {raw[-1]:.2f} s", flush=True)
    seconds = [one.seconds for one in played]
    late = sum(one > most for one in seconds)
    what = f"{named}: hub SIGKILL, the last is caught up after the hub's process starts"
    beside = Against("raw durable sources, left alone, without agents", raw)
    return [
        Row(what, seconds, "s", _TIMES, beside, least=True),
        Row(f"{named}: hub SIGKILL, later than {most:.0f} s", late, "rounds", must=0, least=True),
        Row(
            f"{named}: hub SIGKILL, not caught up after {_WAIT_SECONDS:.0f} s",
            sum(one.lagging for one in played),
            "sources",
            against=Against(beside.what, lagging),
            must=0,
            least=True,
        ),
        Row(f"{named}: lost", sum(one.lost for one in played), "messages", must=0, least=True),
        Row(f"{named}: doubled", sum(one.doubled for one in played), "messages", must=0, least=True),
        Row(f"{named}: registrar, CPU at rest", max(one.idle for one in played), "% of a core"),
        Row(
            f"{named}: registrar, CPU for one hub SIGKILL, most",
            max(one.cpu for one in played),
            "CPU-seconds",
        ),
        Row(f"{named}: registrar, RSS", max(one.rss for one in played), "MB"),
    ]


@dataclass(frozen=True, slots=True)
class Killed:
    """What a round of the product shows."""

    seconds: float
    idle: float
    cpu: float
    """Of the registrar, in CPU-seconds."""
    rss: float
    lost: int
    doubled: int
    lagging: int


async def _ours_killed(classes: int, aggregates: int) -> Killed:
    async with _servers(classes, aggregates) as (servers, stack):
        ours = await _ours(servers, stack, classes, aggregates)
        idle = await _cpu(servers, _IDLE_SECONDS)
        before = cpu_seconds(servers.registrar.process)
        await _round(servers, ours)
        used = cpu_seconds(servers.registrar.process) - before
        lost, doubled = await _count(ours)
        rss = servers.registrar.process.memory_info().rss / 1e6
        return Killed(ours.seconds[0], idle, used, rss, lost, doubled, ours.lagging)


async def _round(servers: LinkWorld, half: Half) -> None:
    """Kill the hub, publish, start it, wait."""
    servers.hub.kill()
    away = time.monotonic() + _AWAY_SECONDS
    await half.publish()
    targets = await half.last()
    await asyncio.sleep(away - time.monotonic())
    began = servers.hub.start()
    half.seconds.append(await half.caught_up(targets) - began)
    await asyncio.sleep(5.0)  # so that the next round does not begin in the retries of this one


async def _count(half: Half) -> tuple[int, int]:
    """Lost and doubled messages, by the leaf's sequence that each of the hub's messages names: how many there
    are tells nothing, for the agents' own records come at any time."""
    targets = await half.last()
    await half.caught_up(targets)
    js = JetStream(half.hub, timeout=10.0)
    held: Counter[tuple[str, int]] = Counter()
    for name in half.aggregates:
        info = await js.stream_info(name)
        for begin in range(info.first, info.last + 1, _AT_ONCE):
            span = range(begin, min(begin + _AT_ONCE, info.last + 1))
            for message in await asyncio.gather(*(js.get_message(name, seq=seq) for seq in span)):
                if message is not None:
                    held[parse_source_header(message.headers[H_SOURCE])] += 1
    there = ((name, seq) for name, last in targets.items() for seq in range(1, last + 1))
    return sum(one not in held for one in there), held.total() - len(held)


async def _cpu(servers: LinkWorld, seconds: float) -> float:
    before = cpu_seconds(servers.registrar.process)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(servers.registrar.process) - before) / seconds


async def _put(nc: Client, subject: str) -> None:
    await nc.request(subject, b"1", timeout=30)


@asynccontextmanager
async def _servers(classes: int, aggregates: int) -> AsyncIterator[tuple[LinkWorld, AsyncExitStack]]:
    """Hub and leaves, linked."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-")))
        domains = [f"edge-{number}" for number in range(_LEAVES)]
        servers = stack.enter_context(link_world(directory, domains, _names(classes), aggregates=aggregates))
        servers.hub.start()
        for leaf in servers.leaves.values():
            leaf.start()
        await asyncio.sleep(2.0)
        yield servers, stack


async def _ours(servers: LinkWorld, stack: AsyncExitStack, classes: int, aggregates: int) -> Half:
    """The product over these servers, with all sources known to the hub."""
    servers.registrar.start()
    for agent in servers.agents.values():
        await asyncio.to_thread(agent.start)
    half = Half(
        "Petiole",
        await _client(stack, servers.hub.ours("jobs", "jobs")),
        {d: await _client(stack, leaf.ours("device", "device")) for d, leaf in servers.leaves.items()},
        {d: await _client(stack, leaf.ours("agent", d)) for d, leaf in servers.leaves.items()},
        {
            d: {leaf_stream(d, cls): direct_subject(d, cls, "bench", "n") for cls in _names(classes)}
            for d in servers.leaves
        },
        [aggregate(number) for number in range(aggregates)],
    )
    await half.publish()
    await half.caught_up(await half.last())
    return half


async def _raw(servers: LinkWorld, stack: AsyncExitStack, classes: int, aggregates: int) -> Half:
    """Raw JetStream over these servers, the sources spread evenly."""
    leaves = {d: await _client(stack, leaf.raw()) for d, leaf in servers.leaves.items()}
    half = Half("raw durable", await _client(stack, servers.hub.raw()), leaves, leaves, {}, [])
    streams = [RawStream(d, f"{d}_{number}", "durable") for d in servers.leaves for number in range(classes)]
    for domain in servers.leaves:
        mine = [one for one in streams if one.domain == domain]
        await make_at_leaf(leaves[domain], mine)
        half.subjects[domain] = {one.name: one.subject for one in mine}
    for number in range(aggregates):
        half.aggregates.append(f"RAW_{number}")
        await make_at_hub(half.hub, f"RAW_{number}", streams[number::aggregates])
    await half.publish()
    await half.caught_up(await half.last())
    return half


def _names(classes: int) -> tuple[str, ...]:
    return tuple(f"c{number}" for number in range(classes))


async def _client(stack: AsyncExitStack, making: Awaitable[Client]) -> Client:
    nc = await making
    stack.push_async_callback(nc.close)
    return nc
