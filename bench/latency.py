"""From a request to the hub's stream at a steady 1,000 readings a second: HTTP, ten a request, answered when
stored on a server that syncs. Beside it, in turns and over the same servers: nats-py that sends each reading
to raw JetStream as a message, again where no answer comes, sourced by the hub.

A reading is at the hub when a consumer of the hub's stream delivers it to this program, which sent it and has
the only clock: that is a little later than it was stored there.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import aiohttp
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.contract import aggregate
from bench.relink_load import NotStoredError, over_nats, session
from bench.relink_watch import deliver, unpacked
from bench.relink_world import RawStream, link_world, make_at_hub, make_at_leaf
from bench.result import Against, Result, Row, measuring, rounds

_DOMAIN = "edge-1"
_DEVICE = "latency"
_RATE = 1_000
_A_REQUEST = 10
_LINGER = "0s"
_WARM_SECONDS = 1.0
_SECONDS = 4.0
_WAIT_SECONDS = 30.0
_GOAL = 1.0
_RAW = RawStream(_DOMAIN, "durable", "durable")


@dataclass(slots=True)
class Times:
    """When each number was sent, answered for, and seen at the hub, in monotonic seconds."""

    sent: dict[int, float] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)

    def answer_ms(self) -> tuple[float, float]:
        """p50 and p99 from sending to the answer."""
        return self._between(self.answered)

    def hub_ms(self) -> tuple[float, float]:
        """p50 and p99 from sending to the hub."""
        return self._between(self.seen)

    def _between(self, end: dict[int, float]) -> tuple[float, float]:
        first = min(self.sent.values()) + _WARM_SECONDS
        took = [1000 * (end[number] - sent) for number, sent in self.sent.items() if sent >= first]
        parts = quantiles(took, n=100)
        return parts[49], parts[98]


def run() -> Result:
    count = rounds()
    with measuring("latency", {"rounds": str(count)}) as result:
        result.rows += asyncio.run(_run(count))
    return result


async def _run(count: int) -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        link_world(Path(directory), [_DOMAIN], linger=_LINGER) as servers,
    ):
        leaf, agent = servers.leaves[_DOMAIN], servers.agents[_DOMAIN]
        await servers.start()
        raw_leaf, raw_hub = await leaf.raw(), await servers.hub.raw()
        ours_hub = await servers.hub.ours("jobs", "jobs")
        await make_at_leaf(raw_leaf, [_RAW])
        await make_at_hub(raw_hub, _RAW.name.upper(), [_RAW])
        async with session() as http:
            url = f"http://127.0.0.1:{agent.http_port}/v1/readings"

            async def post(some: range) -> None:
                await _post(http, url, some)

            ours, raw = list[Times](), list[Times]()
            for number in range(count):
                some = _numbers_of(number)
                ours.append(await _measure(ours_hub, aggregate(0), _A_REQUEST, some, post))
                raw.append(await _measure(raw_hub, _RAW.name.upper(), 1, some, _publisher(raw_leaf)))
        for nc in (raw_leaf, raw_hub, ours_hub):
            await nc.close()
    other = "nats-py and raw JetStream, a message a reading"
    rows = []
    for what, of in (("answered as stored", Times.answer_ms), ("in the hub's stream", Times.hub_ms)):
        mine, theirs = [of(times) for times in ours], [of(times) for times in raw]
        for name, part in (("p50", 0), ("p99", 1)):
            value, against = [one[part] for one in mine], [one[part] for one in theirs]
            full = f"{_RATE} readings/s, {_A_REQUEST} a request: {what}, {name}"
            rows.append(Row(full, value, "ms", _GOAL, Against(other, against), least=True))
    return rows


async def _measure(
    hub: Client, stream: str, at_once: int, numbers: range, send: Callable[[range], Awaitable[None]]
) -> Times:
    """Send numbers at the rate, `at_once` at a time, and see them come."""
    times, whole = Times(), asyncio.Event()

    async def see(message: Msg) -> None:
        now = time.monotonic()
        for number in _numbers(message):
            if number in numbers:
                times.seen.setdefault(number, now)
        if len(times.seen) == len(numbers):
            whole.set()

    subscription = await deliver(hub, stream, see, name=f"seen-{numbers.start}", policy="new")

    async def one(some: range) -> None:
        times.sent |= dict.fromkeys(some, time.monotonic())
        await send(some)
        times.answered |= dict.fromkeys(some, time.monotonic())

    began, step = time.monotonic(), at_once / _RATE
    async with asyncio.TaskGroup() as group:
        for turn in range(len(numbers) // at_once):
            await asyncio.sleep(began + turn * step - time.monotonic())
            group.create_task(one(numbers[turn * at_once : (turn + 1) * at_once]))
    async with asyncio.timeout(_WAIT_SECONDS):
        await whole.wait()
    await subscription.unsubscribe()
    return times


def _numbers_of(round_: int) -> range:
    a_round = int((_WARM_SECONDS + _SECONDS) * _RATE)
    return range(round_ * a_round, (round_ + 1) * a_round)


async def _post(http: aiohttp.ClientSession, url: str, numbers: range) -> None:
    lines = [json.dumps({"ts": 1, "device": _DEVICE, "metric": "number", "value": one}) for one in numbers]
    headers = {"Content-Type": "application/x-ndjson"}
    async with http.post(url, data="\n".join(lines), headers=headers) as answer:
        answer.raise_for_status()


def _publisher(nc: Client) -> Callable[[range], Awaitable[None]]:
    once = over_nats(nc, _RAW.subject)

    async def publish(numbers: range) -> None:
        for number in numbers:
            while True:
                try:
                    await once(number)
                except NotStoredError:
                    continue
                break

    return publish


def _numbers(message: Msg) -> Iterable[int]:
    if not message.subject.startswith("tel."):
        return [int(message.data)]
    if "._batch." not in message.subject:
        return []
    rows = [json.loads(line) for line in unpacked(message).splitlines()]
    # The agent's own readings, such as the time to the first loss, come in between.
    return [int(row["value"]) for row in rows if row.get("device") == _DEVICE]
