"""Bytes over the leaf link, both ways, TCP's own left out.

A reading: real metrics of this machine, sampled again and again, each with three tags, posted to the agent
500 at a time and a sample at a time. Beside it, over the same servers and in the same run: the same readings
by raw JetStream, a message each, plain and with the server's compression of the link. A day of an idle link,
by some minutes of it and by its causes: the product's with one and with three classes, awake and at rest, and
with the profile `thin`, beside a raw stream with a durable consumer. By default a link rests after 20
minutes; here it does after one, and nothing else of it differs.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from nats.aio.client import Client

from agent.config import LinkConfig, RestAfter
from agent.contract import DEFAULT_CLASS, aggregate, leaf_stream
from agent.jetstream import JetStream
from agent.leaf.inputs.host import GROUPS
from agent.leaf.inputs.host.psutil_metrics import Sampler
from bench.link_processes import OURS, RAW, RAW_PLAIN, link_port
from bench.meters import Meter, metered
from bench.relink_world import LinkWorld, RawStream, link_world, make_at_hub, make_at_leaf
from bench.result import Against, Result, Row

DOMAIN = "edge-1"
_RAW = RawStream(DOMAIN, "durable", "durable")
_TAGS = {"site": "north", "line": "a4", "model": "m3"}
_THREE = 3
_SAMPLES = 120
_BETWEEN_SECONDS = 0.1
_STEP = 10.0
"""Seconds between two samples, as their times say."""
_A_REQUEST = 500
_WINDOW = 64
_WAIT_SECONDS = 60.0
_SETTLE_SECONDS = 30.0
_IDLE_SECONDS = 60.0
_DAY_SECONDS = 86_400
_MB = 1e6
_CLASSES = (DEFAULT_CLASS, "bulk", "critical")
_REST_SECONDS = 300.0
_AT_REST_SECONDS = 240.0
_COMMANDS_SECONDS = 150.0
"""The commands rest soon after the classes; a `thin` link says so in the announcement of a minute later."""
_RESTING = "at rest (rest_after = 1m)"
_GOAL_ONE, _GOAL_THREE, _GOAL_THIN = 1.3, 1.7, 0.33
"""12, 16 and 3 MB a day where the raw link takes 9.3."""
_GOAL_PLAIN, _GOAL_PACKED = 0.05, 0.25
"""Of raw JetStream, and of that over a compressed link."""


@dataclass(slots=True)
class Link:
    """Servers that run, and what passes between them."""

    servers: LinkWorld
    meter: Meter
    hub: Client
    system: Client
    leaf: Client
    raw_leaf: Client
    raw_hub: Client

    async def passed(self, account: str) -> int:
        """Bytes until now over the link of an account."""
        return self.meter.passed(await link_port(self.system, account))

    async def causes(self, account: str) -> Counter[str]:
        """The same by cause."""
        return self.meter.causes(await link_port(self.system, account))


def run() -> Result:
    return asyncio.run(_run())


async def _run() -> Result:
    samples = _sampled()
    readings = [line for sample in samples for line in sample]
    requests = [readings[n : n + _A_REQUEST] for n in range(0, len(readings), _A_REQUEST)]
    minute = RestAfter(60.0)
    at_rest = [
        asyncio.create_task(_at_rest((DEFAULT_CLASS,), LinkConfig(rest_after=minute))),
        asyncio.create_task(_at_rest(_CLASSES, LinkConfig(rest_after=minute))),
        asyncio.create_task(_at_rest(_CLASSES, LinkConfig(profile="thin"))),
    ]
    async with open_link((DEFAULT_CLASS,)) as one, open_link(_CLASSES) as three:
        idle, idle_raw, idle_three = await asyncio.gather(
            _idle(one, OURS), _idle(one, RAW), _idle(three, OURS)
        )
        ours = await posted(one, requests) / len(readings)
        small = await posted(one, samples) / len(readings)
        plain = await _published(one, readings) / len(readings)
    async with open_link((DEFAULT_CLASS,), "s2_better") as packed:
        squeezed = await _published(packed, readings) / len(readings)
    rest_one, rest_three, idle_thin = await asyncio.gather(*at_rest)
    raw = Against("raw JetStream, one durable source", idle_raw.total() / _MB)
    what = f"{len(readings)} host metrics with three tags"
    each = "raw JetStream, a message a reading"
    a_sample = f"{what}, a sample of about {len(readings) // len(samples)} a request"
    return Result(
        "wire",
        [
            Row(
                f"{what}, {_A_REQUEST} a request",
                ours,
                "bytes/reading",
                _GOAL_PLAIN,
                Against(each, plain),
                least=True,
            ),
            Row(
                f"{what}, {_A_REQUEST} a request",
                ours,
                "bytes/reading",
                _GOAL_PACKED,
                Against(f"{each}, link compressed (s2_better)", squeezed),
                least=True,
            ),
            Row(a_sample, small, "bytes/reading", None, Against(each, plain), least=True),
            *_idle_rows(f"idle link, one class, {_RESTING}", rest_one, _GOAL_ONE, raw),
            *_idle_rows(f"idle link, three classes, {_RESTING}", rest_three, _GOAL_THREE, raw),
            *_idle_rows("idle link, one class", idle, None, raw),
            *_idle_rows("idle link, three classes", idle_three, None, raw),
            *_idle_rows("idle link, three classes, profile thin", idle_thin, _GOAL_THIN, raw),
        ],
    )


def _sampled() -> list[list[str]]:
    """Samples of this machine as lines of NDJSON, each reading with three tags."""
    sampler, start, samples = Sampler(GROUPS), int(time.time()) - _SAMPLES * int(_STEP), []
    for number in range(_SAMPLES):
        lines = []
        for one in sampler.sample().measures:
            own = dict(list(one.tags.items())[:_THREE])
            tags = own | dict(list(_TAGS.items())[: _THREE - len(own)])
            reading = {"ts": start + number * _STEP, "device": "gateway-7", "metric": one.metric}
            lines.append(json.dumps({**reading, "value": one.value, "tags": tags}, separators=(",", ":")))
        samples.append(lines)
        time.sleep(_BETWEEN_SECONDS)
    return samples


async def posted(link: Link, requests: list[list[str]]) -> int:
    """The bytes that it takes to bring readings to the hub through the agent."""
    stream, url = aggregate(0), f"http://127.0.0.1:{link.servers.agents[DOMAIN].http_port}/v1/readings"
    before = await link.passed(OURS)
    async with aiohttp.ClientSession() as session:
        for lines in requests:
            body = "\n".join(lines)
            async with session.post(url, data=body, headers={"Content-Type": "application/x-ndjson"}) as told:
                told.raise_for_status()
    there = await JetStream(link.leaf).stream_info(leaf_stream(DOMAIN, DEFAULT_CLASS))
    await _held(JetStream(link.hub), stream, there.last)
    return await link.passed(OURS) - before


async def _published(link: Link, readings: list[str]) -> int:
    """The same through raw JetStream, a message a reading."""
    js = JetStream(link.raw_hub)
    before, places = await link.passed(RAW), asyncio.Semaphore(_WINDOW)

    async def publish(reading: str) -> None:
        async with places:
            await link.raw_leaf.request(_RAW.subject, reading.encode(), timeout=_WAIT_SECONDS)

    async with asyncio.TaskGroup() as group:
        for reading in readings:
            group.create_task(publish(reading))
    await _held(js, _RAW.name.upper(), len(readings))
    return await link.passed(RAW) - before


async def _held(js: JetStream, stream: str, last: int) -> None:
    """Wait until the hub's stream is there. Raises `TimeoutError`."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        if (await js.stream_info(stream)).last >= last:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stream} does not reach {last}")
        await asyncio.sleep(0.05)


async def _idle(link: Link, account: str, seconds: float = _IDLE_SECONDS) -> Counter[str]:
    """Bytes a day of a link over which no reading goes, by their cause."""
    before, began = await link.causes(account), time.monotonic()
    await asyncio.sleep(seconds)
    passed, seconds = await link.causes(account) - before, time.monotonic() - began
    return Counter({cause: round(count * _DAY_SECONDS / seconds) for cause, count in passed.items()})


async def _at_rest(classes: tuple[str, ...], config: LinkConfig) -> Counter[str]:
    """The same of a link that has come to rest: the hub has no source, and no consumer of the commands."""
    async with open_link(classes, config=config) as link:
        deadline = time.monotonic() + _REST_SECONDS
        while (await JetStream(link.hub).stream_info(aggregate(0))).config.get("sources"):
            if time.monotonic() > deadline:
                raise TimeoutError("the link does not come to rest")
            await asyncio.sleep(1.0)
        await asyncio.sleep(_COMMANDS_SECONDS)
        return await _idle(link, OURS, _AT_REST_SECONDS)


def _idle_rows(what: str, idle: Counter[str], goal: float | None, raw: Against) -> list[Row]:
    """A row for all, and one for each cause of a hundredth or more."""
    total = idle.total()
    rows = [Row(what, total / _MB, "MB/day", goal, raw, least=True)]
    return rows + [
        Row(f"{what}: {cause}", count / _MB, "MB/day", least=True)
        for cause, count in idle.most_common()
        if count >= total / 100
    ]


@asynccontextmanager
async def open_link(
    classes: tuple[str, ...], compression: str = "", config: LinkConfig | None = None
) -> AsyncIterator[Link]:
    """A hub and a leaf with their agents, settled; the raw link compressed as told, or none."""
    with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
        async with metered(causes=not compression) as meter:
            with link_world(
                Path(directory),
                [DOMAIN],
                classes=classes,
                proxy=meter,
                leaf_listen=meter.hub,
                link=config or LinkConfig(),
            ) as servers:
                if compression:
                    _compress(Path(directory) / DOMAIN / "nats-server.conf", compression)
                await servers.start()
                hub, leaf = servers.hub, servers.leaves[DOMAIN]
                clients = [
                    await hub.ours("jobs", "jobs"),
                    await hub.ours("registrar_system", "registrar"),
                    await leaf.ours("agent", DOMAIN),
                    await leaf.raw(),
                    await hub.raw(),
                ]
                link = Link(servers, meter, *clients)
                await make_at_leaf(link.raw_leaf, [_RAW])
                await make_at_hub(link.raw_hub, _RAW.name.upper(), [_RAW])
                await asyncio.sleep(_SETTLE_SECONDS)
                yield link
                for nc in clients:
                    await nc.close()


def _compress(conf: Path, mode: str) -> None:
    """Have the raw link compressed, for a leaf whose server is not started yet."""
    text = conf.read_text()
    assert text.count(RAW_PLAIN) == 1
    conf.write_text(text.replace(RAW_PLAIN, RAW_PLAIN.replace("off", mode)))
