"""Petiole, Telegraf and rsyslog as the benchmark of peers sees them: processes at the edge that acknowledge
readings and can be killed, a hub behind a link that can be cut, and what has arrived there."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final, Protocol

import aiohttp
import nats
import psutil
from nats.aio.msg import Msg

from agent.contract import H_COUNT, aggregate
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream import JetStream
from bench.hub_stream import jetstream_server
from bench.load import cpu_seconds
from bench.relink_load import DEVICE, NotStoredError, Send, over_http, session
from bench.relink_watch import deliver, unpacked
from bench.relink_world import link_world
from bench.rsyslog import Queue, Relp, pair
from bench.telegraf import STREAM, SUBJECT, Buffer, edge

DOMAIN: Final = "edge-1"
SYNCED: Final = 'sync_interval: "always"'
"""For a server that syncs every message."""
_LOOK_SECONDS: Final = 0.05
_STREAM_BYTES: Final = 16 * 2**30


@dataclass(slots=True)
class Seen:
    """What has arrived at the hub: readings in all, and of those that have a number how often each and when
    first, in seconds since 1970. Nobody looks for numbers unless `numbered`."""

    numbered: bool = False
    readings: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    first: dict[int, float] = field(default_factory=dict)

    def lines(self, lines: Iterable[bytes]) -> None:
        """These have arrived now."""
        for line in lines:
            self.readings += 1
            if self.numbered:
                self._number(json.loads(line))

    def number(self, number: int) -> None:
        """The reading of this number has arrived now."""
        self.counts[number] += 1
        self.first.setdefault(number, time())

    def _number(self, reading: dict[str, object]) -> None:
        if reading.get("device") == DEVICE:
            self.number(int(str(reading["value"])))


@dataclass(slots=True)
class Side:
    """One of them, running. `port` is where its load goes, `send` sends one numbered reading."""

    name: str
    proxy: LoopbackProxy
    port: int
    send: Send
    edge: Callable[[], list[psutil.Process]]
    kill: Callable[[], None]
    start: Callable[[], None]
    seen: Seen

    def cpu(self) -> float:
        """CPU-seconds of its processes at the edge until now."""
        return sum(map(cpu_seconds, self.edge()))

    def megabytes(self) -> float:
        """Their memory; pages that they share count once."""
        return sum(float(one.memory_full_info().pss) for one in self.edge()) / 1e6


class Opened(Protocol):
    """Opens a side in a directory; `direct` without a proxy in its link, which then cannot be cut."""

    def __call__(self, directory: Path, *, direct: bool) -> AbstractAsyncContextManager[Side]: ...


@asynccontextmanager
async def open_side(opened: Opened, *, direct: bool) -> AsyncIterator[Side]:
    """A side in a directory that ends with it."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        async with opened(Path(directory), direct=direct) as side:
            yield side


@asynccontextmanager
async def petiole(directory: Path, *, direct: bool) -> AsyncIterator[Side]:
    """Agent and leaf server at the edge; server and registrar at the hub."""
    async with AsyncExitStack() as stack:
        port = free_port()
        proxy = await _proxied(stack, port)
        listen = f"127.0.0.1:{port}"
        servers = stack.enter_context(
            link_world(
                directory,
                [DOMAIN],
                proxy=None if direct else proxy,
                leaf_listen=listen,
                linger="0s",
            )
        )
        leaf, agent = servers.leaves[DOMAIN], servers.agents[DOMAIN]

        def start() -> None:
            leaf.start()
            agent.start()

        def kill() -> None:
            agent.kill()
            leaf.kill()

        servers.hub.start()
        await asyncio.to_thread(servers.registrar.start)
        await asyncio.to_thread(start)
        http = await stack.enter_async_context(session())
        hub = await servers.hub.ours("jobs", "jobs")
        stack.push_async_callback(hub.close)
        seen = Seen()

        async def see(message: Msg) -> None:
            if "._batch.http" not in message.subject:
                return
            if not seen.numbered:
                seen.readings += int((message.headers or {})[H_COUNT])
                return
            seen.lines(unpacked(message).splitlines())

        await deliver(hub, aggregate(0), see)
        yield Side(
            "Petiole",
            proxy,
            agent.http_port,
            over_http(http, agent.http_port),
            lambda: [agent.process, leaf.process],
            kill,
            start,
            seen,
        )


@asynccontextmanager
async def rsyslog(directory: Path, queue: Queue, *, direct: bool) -> AsyncIterator[Side]:
    """A daemon at the edge and one at the hub."""
    async with AsyncExitStack() as stack:
        port = free_port()
        proxy = await _proxied(stack, port)
        edge, hub, received = stack.enter_context(
            pair(directory, queue, port if direct else proxy.port, port)
        )
        await asyncio.to_thread(hub.start)
        await asyncio.to_thread(edge.start)
        received.touch()
        relp, seen = Relp(edge.port), Seen()
        stack.push_async_callback(relp.close)

        async def send(number: int) -> None:
            reading = {"ts": 1, "device": DEVICE, "metric": "number", "value": number}
            await relp.send(json.dumps(reading).encode())

        watching = asyncio.create_task(_tail(received, seen))
        try:
            yield Side(
                f"rsyslog, {queue} queue",
                proxy,
                edge.port,
                send,
                lambda: [edge.process],
                edge.kill,
                edge.start,
                seen,
            )
        finally:
            watching.cancel()
            await asyncio.wait([watching])


@asynccontextmanager
async def telegraf(directory: Path, buffer: Buffer, *, direct: bool) -> AsyncIterator[Side]:
    """One process at the edge, that publishes to a server at the hub. Started again it does not listen before
    it has reached the hub, so no program waits for it."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(jetstream_server(directory / "hub", "hub", jetstream=SYNCED))
        await make_telegraf_stream(url)
        proxy = await _proxied(stack, int(url.rpartition(":")[2]))
        dialled = url if direct else f"nats://{proxy.host}:{proxy.port}"
        daemon, _ = edge(directory / "edge", dialled, buffer)
        stack.callback(daemon.kill)
        await asyncio.to_thread(daemon.start)
        http = await stack.enter_async_context(session())
        hub = await nats.connect(url)
        stack.push_async_callback(hub.close)
        seen = Seen()

        async def send(number: int) -> None:
            line = f"{DEVICE} number={number}i {number}000000000\n"
            try:
                async with http.post(f"http://127.0.0.1:{daemon.port}/write", data=line) as answer:
                    if answer.status != 204:
                        raise NotStoredError(answer.status)
            except aiohttp.ClientError as error:
                raise NotStoredError from error

        async def see(message: Msg) -> None:
            if not seen.numbered:
                seen.readings += message.data.count(b"\n")
                return
            for line in message.data.splitlines():
                if line.startswith(DEVICE.encode()):
                    seen.number(int(line.split(b"number=")[1].split(b"i")[0]))

        await deliver(hub, STREAM, see)
        yield Side(
            f"Telegraf, buffer {'on disk' if buffer == 'disk' else 'in memory'}",
            proxy,
            daemon.port,
            send,
            lambda: [daemon.process],
            daemon.kill,
            daemon.launch,
            seen,
        )


async def make_telegraf_stream(url: str) -> None:
    """The stream that Telegraf publishes to. It is never full, for it discards the oldest."""
    nc = await nats.connect(url)
    config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "max_bytes": _STREAM_BYTES}
    await JetStream(nc, timeout=30.0).api(f"STREAM.CREATE.{STREAM}", config | {"discard": "old"})
    await nc.close()


async def _tail(path: Path, seen: Seen) -> None:
    """See the lines of a file as they are written."""
    left = b""
    with path.open("rb") as file:
        while True:
            *whole, left = (left + file.read(2**22)).split(b"\n")
            seen.lines(line for line in whole if line.strip())
            await asyncio.sleep(0 if len(whole) > 1_000 else _LOOK_SECONDS)


async def _proxied(stack: AsyncExitStack, port: int) -> LoopbackProxy:
    proxy = LoopbackProxy(port)
    await proxy.start()
    stack.push_async_callback(proxy.stop)
    return proxy
