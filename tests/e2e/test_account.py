"""No reading leaves the account of the agent: what was let in is stored, refused, dead or in flight, whenever
it is looked at, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.contract import Letter
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.intake import RefusedError, UnknownOutcomeError
from agent.leaf.link.states import LinkState
from agent.leaf.publish import publisher, sender
from tests.harness.agents import CLASS, Agent, StreamProbe, chunk
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until

LEVELS = [HttpOptions(name=ack, ack=ack) for ack in ("accepted", "stored", "hub")]
NAME = "petiole_unaccounted_readings"


class Scraper:
    """Looks at the gauge as often as it can, and keeps what was not 0."""

    def __init__(self, one: Agent) -> None:
        self._registry = one.metrics.registry.restricted_registry([NAME])
        self.looks = 0
        self.found: Counter[float] = Counter()
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        for self.looks in itertools.count(1):
            for family in self._registry.collect():
                for sample in family.samples:
                    if sample.value:
                        self.found[sample.value] += 1
            await asyncio.sleep(0)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def load(one: Agent, stored: Counter[str]) -> AsyncIterator[None]:
    """Senders at each level, some of which repeat their requests under a key, one that gives up waiting, and
    dead letters. `stored` gathers what was acknowledged at `stored` or `hub`."""
    stopping = False

    async def send(level: str, number: int, keyed: bool) -> None:
        for turn in itertools.count():
            if stopping:
                return
            text = f"{level}-{number}-{turn}"
            what = chunk(text, 3, key=text if keyed else None)
            for _ in range(3 if keyed else 1):
                with contextlib.suppress(RefusedError, UnknownOutcomeError):
                    await one.submit(what, level)
                    if level != "accepted":
                        stored[f"{text}/0"] = 1
            await asyncio.sleep(random.random() * 0.01)

    async def leave() -> None:
        while not stopping:
            waiting = asyncio.create_task(one.submit(chunk("gone", 2), "stored"))
            await asyncio.sleep(random.random() * 0.01)
            waiting.cancel()
            await asyncio.wait([waiting])

    async def dead_letter() -> None:
        while not stopping:
            with contextlib.suppress(RefusedError, UnknownOutcomeError):
                await one.leaf.intake.dead_letter(
                    "stored", CLASS, [Letter(b"x", "here", "it is no reading")] * 2
                )
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for level, number in itertools.product(("accepted", "stored", "hub"), range(4)):
            group.create_task(send(level, number, keyed=number < 2))
        group.create_task(leave())
        group.create_task(dead_letter())
        try:
            yield
        finally:
            stopping = True


async def more(one: Agent, stored: Counter[str]) -> None:
    """Return when more is acknowledged."""
    want = len(stored) + 50
    await until(lambda: len(stored) >= want, "more is acknowledged")


async def fill(pair: LinkedPair, stored: Counter[str]) -> None:
    """Leave the stream without room for a while."""
    stream, js = pair.probe.stream, pair.probe.js
    config = (await js.stream_info(stream)).config
    await js.update_stream({**config, "max_bytes": 1})
    late = "petiole_refused_after_acceptance_readings_total"
    labels = {"input": "accepted", "class": CLASS, "reason": "stream_full"}
    await until(lambda: pair.agent.value(late, **labels) > 0, "what was accepted is refused")
    await js.update_stream(config)
    pair.agent.leaf._sender.has_room(CLASS)
    await more(pair.agent, stored)


async def test_every_reading_is_accounted_for_at_every_look(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PATIENCE", 0.4)
    monkeypatch.setattr(sender, "ACK_WAIT", 0.3)
    monkeypatch.setattr(sender, "RETRY_PAUSE", 0.1)
    async with open_linked_pair(servers, tmp_path / "state", LinkState.FLOWING, LEVELS) as pair:
        one, stored = pair.agent, Counter[str]()
        scraper = Scraper(one)
        try:
            async with load(one, stored):
                await more(one, stored)
                await servers.leaf.kill()
                await asyncio.sleep(0.5)  # patience runs out
                await servers.leaf.start()
                await more(one, stored)
                servers.leaf.pause()
                await asyncio.sleep(0.6)  # patience runs out
                servers.leaf.resume()
                await more(one, stored)
                await fill(pair, stored)
                await servers.leaf.kill()
                await until(lambda: not one.leaf.ready()[0], "the agent has noticed")
                stop = asyncio.create_task(one.stop())
                await asyncio.wait([stop], timeout=15)
            assert stop.done(), "a stop without a server ends"
        finally:
            await scraper.close()
        assert scraper.looks > 500
        assert not scraper.found
        assert one.value("petiole_dead_readings_total", input="stored", **{"class": CLASS}) > 0
        await servers.leaf.start()
        assert await acknowledged_is_there_once(pair.probe, stored) == []


async def acknowledged_is_there_once(probe: StreamProbe, stored: Counter[str]) -> list[str]:
    """What was acknowledged as stored and is not there, or twice."""
    there = Counter(await probe.texts())
    return [text for text in stored if there[text] != 1]
