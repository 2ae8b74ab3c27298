"""What the keeper of an aggregate is told while a change is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from agent.contract import new_epoch
from agent.hub.registrar.aggregate import AggregateSettings, Source, source
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.metrics import RegistrarMetrics
from agent.hub.registrar.problems import ActiveProblems
from agent.jetstream import JetStream, StreamInfo, UnavailableError
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import WAIT_SECONDS, until


class Interrupted(JetStream):
    """A JetStream on which something happens once, between a change and its answer."""

    meanwhile: Callable[[], None] | None = None

    async def update_stream(self, config: Mapping[str, Any], timeout: float | None = None) -> StreamInfo:
        answer = await super().update_stream(config, timeout)
        if (happens := self.meanwhile) is not None:
            self.meanwhile = None
            happens()
        return answer


class Heard(JetStream):
    """A JetStream whose sources are said to have been heard a moment ago, from when that is wanted on."""

    heard = False

    async def stream_info(self, name: str) -> StreamInfo:
        info = await super().stream_info(name)
        if not self.heard:
            return info
        return replace(info, sources=[{**row, "active": 1_000} for row in info.sources])


class Leaderless(JetStream):
    """A JetStream whose streams are said to have no leader, which a server of a cluster also answers."""

    async def stream_info(self, name: str) -> StreamInfo:
        info = await super().stream_info(name)
        return replace(info, leader="", config={**info.config, "num_replicas": 3})


def _keeper(js: JetStream, turns: asyncio.Semaphore, metrics: RegistrarMetrics) -> AggregateController:
    """The controller of an aggregate in which every source may stay."""
    settings = AggregateSettings(max_bytes=2**26)
    return AggregateController(
        js, AGGREGATE, settings, lambda name: True, FleetState(), turns, ActiveProblems(), metrics
    )


def _sources(*domains: str) -> dict[str, Source]:
    """New epochs of these leaves."""
    made = [source(domain, "normal", new_epoch()) for domain in domains]
    return {one["name"]: one for one in made}


async def test_what_is_wanted_while_a_change_is_made_is_made_next(servers: ServerPair) -> None:
    js = Interrupted(await servers.hub.connect("registrar"))
    keeper = _keeper(js, asyncio.Semaphore(1), RegistrarMetrics(CollectorRegistry()))
    await keeper.begin({})
    first, second, other = _sources("edge-1"), _sources("edge-1"), _sources("edge-2")
    running = asyncio.create_task(keeper.run())
    try:
        js.meanwhile = lambda: keeper.want(second | other)
        keeper.want(first)
        assert await keeper.settled(second | other, WAIT_SECONDS), "the newer epoch is never asked for"
        js.meanwhile = lambda: keeper.without(other)
        keeper.want(first)

        async def gone() -> bool:
            config = (await js.stream_info(AGGREGATE)).config
            return {one["name"] for one in config["sources"]} == set(first)

        await until(gone, "the source that shall not be there is removed")
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_what_is_wanted_while_sources_wait_to_be_added_again_is_what_stands(
    servers: ServerPair,
) -> None:
    """Other aggregates are changed first, and meanwhile the leaves answer: one begins another epoch, one
    rests."""
    js, turns = JetStream(await servers.hub.connect("registrar")), asyncio.Semaphore(1)
    keeper = _keeper(js, turns, RegistrarMetrics(CollectorRegistry()))
    first, second, other = _sources("edge-1"), _sources("edge-1"), _sources("edge-2")
    await keeper.begin(first | other)
    running = asyncio.create_task(keeper.run())
    try:
        assert await keeper.settled(first | other, WAIT_SECONDS)
        async with turns:
            for name in first | other:
                keeper.linked(name, asyncio.get_running_loop().time())
            await until(lambda: bool(turns._waiters), "both are to be added again")
            keeper.want(second)
            keeper.without(other)

        async def stands() -> bool:
            have = (await js.stream_info(AGGREGATE)).config.get("sources") or []
            return [(one["name"], one["consumer"]["name"]) for one in have] == [
                (name, one["consumer"]["name"]) for name, one in second.items()
            ]

        await until(stands, "the newer epoch is asked for, and nothing of the leaf that rests")
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("heard", [True, False])
async def test_a_source_that_comes_back_while_its_change_waits_is_left_alone(
    servers: ServerPair, heard: bool
) -> None:
    js, turns = Heard(await servers.hub.connect("registrar")), asyncio.Semaphore(1)
    metrics = RegistrarMetrics(CollectorRegistry())
    keeper, (name, source) = _keeper(js, turns, metrics), *_sources("edge-1").items()
    await keeper.begin({name: source})
    running = asyncio.create_task(keeper.run())
    try:
        assert await keeper.settled({name: source}, WAIT_SECONDS)
        async with turns:
            keeper.linked(name, asyncio.get_running_loop().time())
            await until(lambda: bool(turns._waiters), "the change waits for its turn")
            js.heard = heard
        added_again = metrics.readds._value
        seen = keeper.seen
        await until(lambda: keeper.seen is not seen, "it has looked again")
        await until(lambda: bool(added_again.get()) is not heard, "it was added again unless it was heard")
        if heard:
            later = keeper.seen
            await until(lambda: keeper.seen is not later, "it has looked once more")
            assert not added_again.get()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_an_answer_of_a_server_that_does_not_lead_is_no_look(servers: ServerPair) -> None:
    nc, turns = await servers.hub.connect("registrar"), asyncio.Semaphore(1)
    metrics = RegistrarMetrics(CollectorRegistry())
    keeper = _keeper(JetStream(nc), turns, metrics)
    await keeper.begin({})
    assert (await keeper.observe()).info.name == AGGREGATE, "a single server needs no leader"
    with pytest.raises(UnavailableError, match=f"no server of the hub leads {AGGREGATE}"):
        await _keeper(Leaderless(nc), turns, metrics).observe()
