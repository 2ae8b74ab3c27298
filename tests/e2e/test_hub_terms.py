"""A hub that takes in other leaves: its registrar begins again, and the one before is gone at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.config import Config, LeafMember, Nats, RegistrarConfig, Size
from agent.jetstream import JetStream, UnavailableError
from agent.process.hub import HubAgent
from agent.process.reload import Applied, ConfigChange
from agent.server.health import ServerHealth
from tests.harness.registrar import LeafHand, flowing, hub_of
from tests.harness.servers import Hub, ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that the garbage collector has looked at; it lets alone what was there before."""
    looked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    yield looked
    gc.callbacks.remove(note)
    gc.unfreeze()


def config_of(hub: Hub) -> Config:
    """An agent beside this server."""
    return Config(
        domain="hub",
        role="hub",
        leaf=[LeafMember(user.domain, user.key, list(user.classes)) for user in hub.config.leaves],
        nats=Nats(
            server="external",
            listen=f"127.0.0.1:{hub.port}",
            seed_file=hub.keys["registrar"],
            system_seed_file=hub.keys["registrar_system"],
        ),
        registrar=RegistrarConfig(max_bytes=Size(2**26)),
    )


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[HubAgent]:
    metrics = Metrics()
    agent, stopping = HubAgent(config, metrics, ServerHealth(metrics), "m"), asyncio.Event()
    task = asyncio.create_task(agent.run(stopping))
    try:
        yield agent
    finally:
        stopping.set()
        await task


async def test_a_change_that_was_meant_for_a_server_that_died_is_not_made_at_the_one_that_comes_back(
    servers: ServerPair,
) -> None:
    hub, leaf = servers.hub, await LeafHand.make(servers.leaf)
    async with running(config_of(hub)) as agent:
        await until(lambda: agent.ready()[0], "announcements are answered")
        hand = await hub_of(servers)
        await flowing(hand, leaf, 3)
        client = agent._nc
        assert client is not None
        await hub.kill()
        await until(lambda: not client.is_connected, "its end is noticed")
        purging = asyncio.create_task(JetStream(client, timeout=60.0).purge(AGGREGATE, 2))
        await asyncio.sleep(0)
        await hub.start()
        with pytest.raises(UnavailableError):
            await purging
        assert (await hand.aggregate()).messages == 3


def _content(registrar: object) -> dict[str, Any]:
    return {} if registrar is None else vars(registrar)


@pytest.mark.parametrize("terms", [2, 100])
async def test_a_term_that_ends_is_freed_and_seldom_by_a_look_at_all_that_there_is(
    servers: ServerPair, collections: list[int], monkeypatch: pytest.MonkeyPatch, terms: int
) -> None:
    monkeypatch.setattr("agent.process.hub._COLLECTED", terms)
    hub, leaf = servers.hub, await LeafHand.make(servers.leaf)
    config = config_of(hub)

    async with running(config) as agent:
        for term in (1, 2):
            await until(lambda: agent.ready()[0], "the registrar is there")
            await leaf.announce()
            assert agent._registrar is not None
            before = weakref.ref(agent._registrar)
            fleet = weakref.ref(agent._registrar._fleet)
            collections.clear()
            await agent.apply(Applied(config, ConfigChange(live=frozenset({"leaf"})), (), {}, {}))
            await until(lambda: agent._registrar not in (None, before()), "the next term")  # noqa: B023
            # Since Python 3.12 frames of handled errors keep what `dissolve` leaves of it, an empty object.
            await until(lambda: fleet() is None and not _content(before()), "the one before is gone")  # noqa: B023
            assert (2 in collections) is (term == terms)
