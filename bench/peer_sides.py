"""Petiole and rsyslog as the benchmark of peers sees them: processes at the edge that acknowledge readings
and can be killed, a hub behind a link that can be cut, and what has arrived there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final

import psutil
import zstandard
from nats.aio.msg import Msg

from agent.contract import H_COUNT, H_ENCODING, aggregate
from agent.demo.ports import free_port
from agent.demo.proxy import Proxy
from agent.jetstream import JetStream
from bench.loading import cpu_seconds
from bench.relink_load import DEVICE, Send, over_http, session
from bench.relink_world import link_world
from bench.relp import Relp
from bench.rsyslog import Queue, pair

DOMAIN: Final = "edge-1"
_LOOK_SECONDS: Final = 0.05


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

    def _number(self, reading: dict[str, object]) -> None:
        if reading.get("device") == DEVICE:
            number = int(str(reading["value"]))
            self.counts[number] += 1
            self.first.setdefault(number, time())


@dataclass(slots=True)
class Side:
    """One of them, running. `port` is where its load goes, `send` sends one numbered reading."""

    name: str
    proxy: Proxy
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
                linger="100ms",
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
            headers, data = message.headers or {}, message.data
            if not seen.numbered:
                seen.readings += int(headers[H_COUNT])
                return
            if H_ENCODING in headers:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=2**26)
            seen.lines(data.splitlines())

        inbox = hub.new_inbox()
        await hub.subscribe(inbox, cb=see)
        config = {"name": "seen", "deliver_subject": inbox, "deliver_policy": "all", "ack_policy": "none"}
        request = {"stream_name": aggregate(0), "config": config}
        await JetStream(hub).api(f"CONSUMER.CREATE.{aggregate(0)}.seen", request)
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


async def _tail(path: Path, seen: Seen) -> None:
    """See the lines of a file as they are written."""
    left = b""
    with path.open("rb") as file:
        while True:
            *whole, left = (left + file.read(2**22)).split(b"\n")
            seen.lines(line for line in whole if line.strip())
            await asyncio.sleep(0 if len(whole) > 1_000 else _LOOK_SECONDS)


async def _proxied(stack: AsyncExitStack, port: int) -> Proxy:
    proxy = Proxy(port)
    await proxy.start()
    stack.push_async_callback(proxy.stop)
    return proxy
