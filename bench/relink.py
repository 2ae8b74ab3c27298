"""How long a link takes to be right again after it broke: Petiole beside raw JetStream, which is left alone,
with its durable sources and with its classic ones. All three live in the same two servers, take the same way
and carry the same load, so that every fault meets all of them at once.

Caught up: the newest message that the leaf held when the link was given back is in the hub's stream (after a
kill of the leaf's server: the first message that was not there before). Verified: besides, the agent
says that the link flows and has said in between that it did not. From the moment at which the peer's process
is started or packets pass again, and from link-up, which the leaf's server logs.

Classic sources take up to forty seconds each time, so they take part in the first two rounds only.
`ROUNDS=1 python -m bench relink` for fewer than ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from agent.contract import DEFAULT_CLASS, aggregate, leaf_stream
from agent.demo.loopback import LoopbackProxy, free_port
from agent.jetstream import JetStream, JetStreamError
from bench.link_processes import OURS, RAW
from bench.relink_load import Load, over_http, over_nats, session
from bench.relink_rows import Fault, Measured, rows
from bench.relink_watch import Trace, numbers, watch_held, watch_state
from bench.relink_world import LinkWorld, RawStream, link_world, make_at_hub, make_at_leaf
from bench.result import Result, rounds
from tests.faults.tools.line import line, missing
from tests.harness.servers import LinkProxy

DOMAIN: Final = "edge-1"
FAULTS: Final = (
    Fault("hub SIGKILL", "hub", 3.0),
    Fault("leaf server SIGKILL", "leaf", 3.0),
    Fault("link cut", "cut", 3.0),
    Fault("link cut", "cut", 15.0),
    Fault("link cut", "cut", 40.0),
    Fault("half-open", "stall", 30.0),
)
FLOWING: Final = "flowing"
CLASSIC: Final = "raw classic"
_RATE = 100.0
_ROUNDS = 10
_CLASSIC_ROUNDS = 2
_SETTLE_SECONDS = 5.0
_WAIT_SECONDS = 120.0
_SAID_SECONDS = 20.0


class NotSeenError(Exception):
    """What was waited for did not happen in time; the text says what."""


@dataclass(slots=True)
class Side:
    """One of the three, with its connections, its load and what is seen of it."""

    name: str
    account: str
    leaf: Client
    leaf_stream: str
    hub: Client
    hub_stream: str
    load: Load
    held: Trace[int] = field(default_factory=Trace)
    marks: list[tuple[Fault, int]] = field(default_factory=list)
    """Each fault, and how many messages had been sent when it began."""

    async def last(self) -> int:
        while True:
            try:
                return (await JetStream(self.leaf, timeout=1.0).stream_info(self.leaf_stream)).last
            except JetStreamError:
                await asyncio.sleep(0.02)


def run() -> Result:
    return asyncio.run(_run(rounds(_ROUNDS)))


async def _run(rounds: int) -> Result:
    async with _bench() as bench:
        for number in range(rounds):
            for fault in FAULTS:
                print(f"round {number + 1} of {rounds}: {fault.name}", flush=True)
                await bench.measure(fault)
            if number + 1 == min(rounds, _CLASSIC_ROUNDS):
                await bench.retire(CLASSIC)
        for name in [side.name for side in bench.sides]:
            await bench.retire(name)
    found = rows(FAULTS, bench.measured, bench.lost, bench.doubled, bench.way)
    return Result("relink", found, {"rounds": str(rounds)})


class Bench:
    """The running world and what was measured in it."""

    def __init__(self, servers: LinkWorld, proxy: LinkProxy, way: str, sides: list[Side]) -> None:
        self.servers, self.way, self.sides = servers, way, sides
        self.measured: list[Measured] = []
        self.state: Trace[str] = Trace()
        self.lost: dict[tuple[str, str], int] = {}
        self.doubled: dict[tuple[str, str], int] = {}
        self._cable = proxy

    async def measure(self, fault: Fault) -> None:
        """Make a fault, mend it, and wait until all is well again."""
        await self._settled()
        for side in self.sides:
            side.marks.append((fault, side.load.sent))
        began = time.time()
        self._make(fault)
        await asyncio.sleep(fault.seconds)
        if fault.kind == "leaf":
            targets = {side.name: side.held.seen[-1][1] + 1 for side in self.sides}
        else:
            targets = {side.name: await side.last() for side in self.sides}
        restored = self._mend(fault)
        for side in self.sides:
            await self._held(side, targets[side.name], restored)
        verified = await self._verified(began, restored)
        leaf = self.servers.leaves[DOMAIN]
        for side in self.sides:
            target = targets[side.name]
            one = Measured(
                fault,
                side.name,
                restored,
                next(leaf.link_ups(side.account, restored), None),
                side.held.first(lambda seq, target=target: seq >= target, restored),  # type: ignore[misc]
                verified if side.account == OURS else None,
                self._noticed(side, began),
            )
            print(f"  {one}", flush=True)
            self.measured.append(one)

    def _noticed(self, side: Side, began: float) -> float | None:
        """Seconds until the product said that the link does not flow; for raw JetStream, until the leaf's
        server closed it."""
        if side.account == OURS:
            at = self.state.first(lambda state: state != FLOWING, began)
        else:
            at = next(self.servers.leaves[DOMAIN].link_downs(side.account, began), None)
        return None if at is None else at - began

    async def retire(self, name: str) -> None:
        """Count what became of a side's messages and measure it no more."""
        side = next(one for one in self.sides if one.name == name)
        side.load.stop()
        # What is stored only after the count began would be taken for lost.
        await _until(lambda: len(side.load.acknowledged) == side.load.sent, f"{name}: all is acknowledged")
        await self._held(side, await side.last(), time.time())
        there = await numbers(side.hub, side.hub_stream)
        ends = [first for _, first in side.marks[1:]] + [side.load.sent]
        for (fault, first), end in zip(side.marks, ends, strict=True):
            key, span = (fault.name, name), range(first + 1, end + 1)
            missing = sum(there[number] == 0 for number in span if number in side.load.acknowledged)
            self.lost[key] = self.lost.get(key, 0) + missing
            self.doubled[key] = self.doubled.get(key, 0) + sum(max(0, there[n] - 1) for n in span)
        self.sides.remove(side)

    def _make(self, fault: Fault) -> None:
        match fault.kind:
            case "hub":
                self.servers.hub.kill()
            case "leaf":
                self.servers.leaves[DOMAIN].kill()
            case "cut":
                self._cable.cut()
            case "stall":
                self._cable.stall()

    def _mend(self, fault: Fault) -> float:
        match fault.kind:
            case "hub":
                return self.servers.hub.start()
            case "leaf":
                return self.servers.leaves[DOMAIN].start()
            case _:
                self._cable.restore()
                return time.time()

    async def _held(self, side: Side, target: int, since: float) -> None:
        await _until(
            lambda: side.held.first(lambda seq: seq >= target, since) is not None,
            f"{side.name}: the hub holds {target} of {side.leaf_stream}",
        )

    async def _verified(self, began: float, restored: float) -> float | None:
        """When the product first said again that the link flows, having said that it does not; None where it
        does not say so."""

        def at() -> float | None:
            broken = self.state.first(lambda state: state != FLOWING, began)
            if broken is None:
                return None
            return self.state.first(lambda state: state == FLOWING, max(broken, restored))

        with contextlib.suppress(NotSeenError):
            await _until(lambda: at() is not None, "the agent says that the link flows again", _SAID_SECONDS)
        return at()

    async def _settled(self) -> None:
        """All sides hold what there is, and some seconds have passed over that: the servers' own retries of
        the fault before are not to be measured."""
        for side in self.sides:
            await self._held(side, await side.last(), time.time())
        await _until(lambda: bool(self.state.seen) and self.state.seen[-1][1] == FLOWING, "the link flows")
        await asyncio.sleep(_SETTLE_SECONDS)


@asynccontextmanager
async def _bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="petiole-bench-")))
        proxy, listen, way = await _cable(stack)
        servers = stack.enter_context(link_world(directory, [DOMAIN], proxy=proxy, leaf_listen=listen))
        leaf, agent = servers.leaves[DOMAIN], servers.agents[DOMAIN]
        await servers.start()
        http = await stack.enter_async_context(session())
        raw_leaf, raw_hub = await leaf.raw(), await servers.hub.raw()
        stack.push_async_callback(raw_leaf.close)
        stack.push_async_callback(raw_hub.close)
        ours_leaf, ours_hub = await leaf.ours("agent", DOMAIN), await servers.hub.ours("jobs", "jobs")
        stack.push_async_callback(ours_leaf.close)
        stack.push_async_callback(ours_hub.close)
        sides = [
            Side(
                "Petiole",
                OURS,
                ours_leaf,
                leaf_stream(DOMAIN, DEFAULT_CLASS),
                ours_hub,
                aggregate(0),
                Load(over_http(http, agent.http_port), _RATE),
            )
        ]
        raws = [RawStream(DOMAIN, "durable", "durable"), RawStream(DOMAIN, "classic", "classic")]
        await make_at_leaf(raw_leaf, raws)
        for raw in raws:
            await make_at_hub(raw_hub, raw.name.upper(), [raw])
            load = Load(over_nats(raw_leaf, raw.subject), _RATE)
            sides.append(Side(f"raw {raw.kind}", RAW, raw_leaf, raw.name, raw_hub, raw.name.upper(), load))
        bench = Bench(servers, proxy, way, list(sides))
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(watch_state(agent, bench.state))]
            watching += [group.create_task(watch_held(s.hub, s.hub_stream, s.held)) for s in sides]
            loads = [group.create_task(side.load.run()) for side in sides]
            yield bench
            await asyncio.wait(loads)
            for task in watching:
                task.cancel()


async def _cable(stack: AsyncExitStack) -> tuple[LinkProxy, str, str]:
    """A line where root is given, else a proxy: what it is, where the hub listens, and its name."""
    if missing() is None:
        one = stack.enter_context(line())
        return one, one.listen, "packets dropped on a line (a TUN device)"
    port = free_port()
    proxy = LoopbackProxy(port)
    await proxy.start()
    stack.push_async_callback(proxy.stop)
    return proxy, f"127.0.0.1:{port}", "a TCP proxy that stalls; nothing is lost"


async def _until(true: Callable[[], bool], what: str, seconds: float = _WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise NotSeenError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.02)
