"""What it costs to send a batch at once: 10 to 10,000 readings a second over HTTP, ten a request (of the last
a hundred) and spread over the second, answered when stored and synced; hub, registrar and link run.

*Stored* is from when a request was due to its answer, *at hub* until a consumer of the hub's stream has
delivered it here. *Link* counts everything that passes between the servers, both ways, divided by the
readings; at ten readings a second that is mostly the idle link. *Messages* are those of the hub's stream.
*Flash* is what reaches the block device that holds the leaf's store and state, by the kernel's counters: a
file system of its own (ext4) where this process may mount one, so with its journal, divided by the readings,
and for a day of the same.

*At once* is the default, within the batches that a class has left unused for a day: no day with more than
`batches_per_second` is like that. *Used up* is the same when none are left, so that the bound holds.
`linger = "100ms"` and the second of `profile = "thin"` hold every batch back. *nats-server alone* is a synced
message of raw JetStream for each request, which has no consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.contract import aggregate
from agent.jetstream import JetStream
from bench.link_processes import OURS, link_port
from bench.load import NDJSON, STAMP, Answered, body, http_load, post, request
from bench.meters import Device, Meter, Written, device, metered
from bench.relink_watch import deliver, unpacked
from bench.relink_world import LinkWorld, RawStream, link_world, make_at_leaf
from bench.result import Result, Row, measuring

RATES: Final = {10: 10, 100: 10, 1_000: 10, 10_000: 100}
"""Readings a second, and how many a request."""
_CONNECTIONS: Final = 120
"""About as many as the input takes, and enough for all requests that wait for a second."""
_DOMAIN: Final = "edge-1"
_DEVICE: Final = "commit"
_WARM_SECONDS: Final = 1.5
_SECONDS: Final = 8.0
_SETTLE_SECONDS: Final = 6.0
_DAY_SECONDS: Final = 86_400
_WAIT_SECONDS: Final = 30.0
_USED_UP_MS: Final = 20.0
"""One connection waits longer than this for a batch where none are left."""
_USE_UP_SECONDS: Final = 600.0
"""For the batches of a day, one after the other: minutes, by how quick the disk is."""
_MODES: Final = {"at once": "0s", 'linger = "100ms"': "100ms", 'profile = "thin"': "1s"}
_BOUNDED: Final = (1_000, 10_000)
"""Below, the bound is never reached."""
_RAW_RATES: Final = (10, 1_000)
_RAW: Final = RawStream(_DOMAIN, "durable", "classic")


@dataclass(slots=True)
class World:
    """A leaf on a device of its own, linked to a hub, and what arrives there."""

    servers: LinkWorld
    meter: Meter
    on: Device
    system: Client
    hub: Client
    took: list[float] = field(default_factory=list)
    """Milliseconds from when readings were due until they were seen."""

    async def counters(self) -> tuple[Written, int, int]:
        """The device's, bytes over the link, messages in the hub's stream."""
        port = await link_port(self.system, OURS)
        stream = await JetStream(self.hub).stream_info(aggregate(0))
        return self.on.written(), self.meter.passed(port), stream.last


def run() -> Result:
    with measuring("commit", {"seconds each": f"{_SECONDS:.0f}"}) as result:
        asyncio.run(_run(result, _SECONDS))
    return result


async def _run(result: Result, seconds: float) -> None:
    for mode, linger in _MODES.items():
        with result.part(mode):
            async with _world(linger) as world:
                result.options["flash"] = "a device of its own" if world.on.alone else "shared with others"
                if mode == "at once":
                    with result.part("nats-server alone"):
                        result.rows += await _raw(world, seconds)
                for rate in RATES:
                    result.rows += await _measure(world, mode, rate, seconds)
                if mode == "at once":
                    with result.part("used up"):
                        await asyncio.to_thread(_use_up, world)
                        for rate in _BOUNDED:
                            result.rows += await _measure(world, "used up", rate, seconds)


async def _measure(world: World, mode: str, rate: int, seconds: float) -> list[Row]:
    each = RATES[rate]
    requests = [post("/v1/readings", NDJSON, _lines(seed, each)) for seed in range(16)]
    port = world.servers.agents[_DOMAIN].http_port
    with http_load(port, _CONNECTIONS, requests, rate / each) as load:
        await asyncio.sleep(_WARM_SECONDS)
        flash, link, messages = await world.counters()
        load.answered()
        world.took.clear()
        await asyncio.sleep(seconds)
        answered, took = load.answered(), list(world.took)
        flash_after, link_after, messages_after = await world.counters()
    await asyncio.sleep(_WARM_SECONDS)
    readings = max(1, answered.requests * each)
    found = _times(f"{mode}, {rate:,} readings/s", answered, took)
    found.append(_row(mode, rate, "link", (link_after - link) / readings, "bytes/reading"))
    a_second = (messages_after - messages) / answered.seconds
    found.append(_row(mode, rate, "messages", a_second, "1/s"))
    return found + _flash(mode, rate, flash_after.since(flash), readings, answered.seconds)


def _times(name: str, answered: Answered, took: list[float]) -> list[Row]:
    parts = quantiles(took, n=100) if len(took) > 1 else [0.0] * 99
    return [
        Row(f"{name}: {what}", value, "ms", least=True)
        for what, value in (
            ("stored, p50", answered.p50),
            ("stored, p99", answered.p99),
            ("at hub, p50", parts[49]),
            ("at hub, p99", parts[98]),
        )
    ]


def _flash(mode: str, rate: int, written: Written, readings: int, seconds: float) -> list[Row]:
    day = _DAY_SECONDS / seconds
    return [
        _row(mode, rate, "flash", written.bytes / readings, "bytes/reading"),
        _row(mode, rate, "flushes", written.flushes / readings, "1/reading"),
        _row(mode, rate, "flash a day", written.bytes * day / 1e9, "GB/day"),
        _row(mode, rate, "flushes a day", written.flushes * day / 1e6, "million/day"),
    ]


def _row(mode: str, rate: int, what: str, value: float, unit: str) -> Row:
    return Row(f"{mode}, {rate:,} readings/s: {what}", value, unit, least=True)


async def _raw(world: World, seconds: float) -> list[Row]:
    """A synced message of raw JetStream for each request, at each rate."""
    nc, found = await world.servers.leaves[_DOMAIN].raw(), []
    await make_at_leaf(nc, [_RAW])
    for rate in _RAW_RATES:
        flash, began, took = world.on.written(), time.monotonic(), list[float]()
        each = RATES[rate]
        step = each / rate
        while time.monotonic() - began < seconds:
            sent = time.monotonic()
            await nc.request(_RAW.subject, _lines(len(took), each), timeout=_WAIT_SECONDS)
            took.append(1000 * (time.monotonic() - sent))
            await asyncio.sleep(began + len(took) * step - time.monotonic())
        parts, name = quantiles([*took, *took], n=100), f"nats-server alone, {rate:,} readings/s"
        found += [
            Row(f"{name}: stored, p50", parts[49], "ms", least=True),
            Row(f"{name}: stored, p99", parts[98], "ms", least=True),
        ]
        written = world.on.written().since(flash)
        found += _flash("nats-server alone", rate, written, len(took) * each, time.monotonic() - began)
    await nc.close()
    return found


def _use_up(world: World) -> None:
    """Send until a batch has to wait for its turn. Raises `TimeoutError`."""
    port, deadline = world.servers.agents[_DOMAIN].http_port, time.monotonic() + _USE_UP_SECONDS
    with http_load(port, 1, [request(1, seed, "ndjson") for seed in range(16)]) as load:
        while time.monotonic() < deadline:
            time.sleep(1.0)
            answered = load.answered()
            if not answered.requests or answered.p50 > _USED_UP_MS:
                return
    raise TimeoutError(f"batches are still sent at once after {_USE_UP_SECONDS:.0f} s")


def _lines(seed: int, count: int) -> bytes:
    """A request of so many readings; the first says when it was due."""
    stamped = f'{{"ts":1,"device":"{_DEVICE}","metric":"due","value":{STAMP}}}\n'
    return stamped.encode() + body(count - 1, seed)


@asynccontextmanager
async def _world(linger: str) -> AsyncIterator[World]:
    with device() as on:
        hub_directory = on.directory.parent / "world"
        (on.directory / _DOMAIN).mkdir()
        hub_directory.mkdir()
        (hub_directory / _DOMAIN).symlink_to(on.directory / _DOMAIN)
        async with metered() as meter:
            with link_world(
                hub_directory, [_DOMAIN], proxy=meter, leaf_listen=meter.hub, linger=linger, stream="2GiB"
            ) as servers:
                await servers.start()
                hub = await servers.hub.ours("jobs", "jobs")
                system = await servers.hub.ours("registrar_system", "registrar")
                world = World(servers, meter, on, system, hub)
                await _watch(world)
                await asyncio.sleep(_SETTLE_SECONDS)
                yield world
                await hub.close()
                await system.close()


async def _watch(world: World) -> None:
    """Have what arrives at the hub seen."""

    async def see(message: Msg) -> None:
        if "._batch.http" in message.subject:
            now = time.monotonic()
            world.took += [1000 * (now - due) for due in _due(message)]

    await deliver(world.hub, aggregate(0), see)


def _due(message: Msg) -> list[float]:
    """When the requests of a batch were due, in monotonic seconds."""
    decoded: list[dict[str, Any]] = [
        msgspec.json.decode(line) for line in unpacked(message).splitlines() if _DEVICE.encode() in line
    ]
    return [(row["value"] - int(STAMP)) / 1e6 for row in decoded if row["device"] == _DEVICE]
