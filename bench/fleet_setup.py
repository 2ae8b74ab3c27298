"""The fleet of the ten thousand leaves: all processes, joined and announcing themselves."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.base.wait import bounded_gather
from agent.contract import FLEET_BUCKET, aggregate
from agent.demo.ports import free_port
from agent.hub.registrar.records import encode
from agent.jetstream import JetStream
from bench import fleet_servers
from bench.fleet_hub import (
    LOOK_SECONDS,
    MACHINE,
    SOURCES,
    WAIT_SECONDS,
    Hub,
    listens,
    made,
    make_hub,
    make_key,
)
from bench.fleet_leaves import AnnouncingLeaf, Counted, SmallLeaf
from bench.fleet_servers import RealLeaf

_JOINING: Final = 200
"""Real leaves that join at once: two thousand keep both servers of two cores busy for longer than requests to
JetStream wait, and their announcements come again and again."""


@dataclass(slots=True)
class Fleet:
    """The hub and all leaves."""

    hub: Hub
    leaves: list[AnnouncingLeaf]
    counted: Counted
    real: int

    async def all_answered(self, since: float) -> float:
        """When the last leaf was answered after a time, in seconds since 1970. Raises `RuntimeError`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while missing := sum(leaf.answered_at < since for leaf in self.leaves):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{missing} leaves are not answered: {self.counted}")
            await asyncio.sleep(LOOK_SECONDS)
        return max(leaf.answered_at for leaf in self.leaves if leaf.answered_at >= since)

    async def at_rest(self) -> None:
        """Return when every class flows or rests. Raises `RuntimeError`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while missing := sum(leaf.classes_state not in ("flowing", "resting") for leaf in self.leaves):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{missing} classes are not at rest: {self.counted}")
            await asyncio.sleep(1.0)


@asynccontextmanager
async def open_fleet(leaves: int, real: int) -> AsyncIterator[tuple[Fleet, float]]:
    """All processes, and how long it took until each leaf was answered once."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as name:
        directory = Path(name)
        keys = [make_key(number) for number in range(leaves)]
        hub = make_hub(directory / "hub", [key for key, _ in keys], [public for _, public in keys])
        counted, sources, port = Counted(), None, free_port()
        small = [SmallLeaf(key, MACHINE, counted) for key, _ in keys[real:]]
        large = [RealLeaf(key, MACHINE, counted) for key, _ in keys[:real]]
        try:
            await seed(hub, small, real)
            text = fleet_servers.configuration(
                directory / "real", port, hub.links, [one.key for one in large]
            )
            sources = fleet_servers.start(directory / "real", text)
            await listens(port)
            at = time.time()
            for begin in range(0, real, _JOINING):
                group = large[begin : begin + _JOINING]
                await bounded_gather(lambda leaf: leaf.connect(port), group)
                announcing(group)
                await Fleet(hub, list(group), counted, real).at_rest()
            print(f"{real} sources after {time.time() - at:.1f} s: {counted}", flush=True)
            at = time.time()
            await bounded_gather(lambda leaf: leaf.connect(hub.links), small)
            print(f"{len(small)} links after {time.time() - at:.1f} s", flush=True)
            fleet, at = Fleet(hub, [*small, *large], counted, real), time.time()
            announcing(small)
            first = await fleet.all_answered(at) - at
            print(f"all answered after {first:.1f} s: {counted}", flush=True)
            yield fleet, first
        finally:
            hub.end()
            if sources is not None:
                sources.kill()
                sources.wait()


def announcing(leaves: Iterable[AnnouncingLeaf]) -> None:
    """Let leaves begin to announce, at moments of their own."""
    for leaf in leaves:
        leaf.begin(random.uniform(0.0, 10.0))


async def seed(hub: Hub, small: list[SmallLeaf], real: int) -> None:
    """Start the hub with the records of leaves that rest."""
    began = hub.start()
    print(f"hub ready after {await hub.ready() - began:.1f} s", flush=True)
    client = await hub.client("registrar")
    js = JetStream(client, timeout=10.0)
    await made(js, aggregate(-(-(real + len(small)) // SOURCES) - 1))
    hub.kill()
    server = str(client._server_info["server_id"])  # the client does not tell it

    async def store(numbered: tuple[int, SmallLeaf]) -> None:
        number, leaf = numbered
        info = infos[(real + number) // SOURCES]
        await js.publish(f"$KV.{FLEET_BUCKET}.{leaf.domain}", encode(leaf.record(info, server)))

    count = -(-(real + len(small)) // SOURCES)
    infos = [await js.stream_info(aggregate(number)) for number in range(count)]
    await bounded_gather(store, enumerate(small))
    await client.close()
    began = hub.start()
    print(f"hub with records ready after {await hub.ready() - began:.1f} s", flush=True)
