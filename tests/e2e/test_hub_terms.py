"""A hub that takes in other leaves: its registrar begins again, and the one before is gone at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from agent.base.metrics import Metrics
from agent.config import Config, LeafMember, Nats, RegistrarConfig, Size
from agent.process.hub import HubAgent
from agent.process.reload import Applied, ConfigChange
from agent.server.health import ServerHealth
from tests.harness.registrar import LeafHand
from tests.harness.servers import ServerPair
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


@pytest.mark.parametrize("terms", [2, 100])
async def test_a_term_that_ends_is_freed_and_seldom_by_a_look_at_all_that_there_is(
    servers: ServerPair, collections: list[int], monkeypatch: pytest.MonkeyPatch, terms: int
) -> None:
    monkeypatch.setattr("agent.process.hub._COLLECTED", terms)
    hub, leaf = servers.hub, await LeafHand.make(servers.leaf)
    config = Config(
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
    metrics = Metrics()
    agent, stopping = HubAgent(config, metrics, ServerHealth(metrics), "m"), asyncio.Event()
    task = asyncio.create_task(agent.run(stopping))
    try:
        for term in (1, 2):
            await until(lambda: agent.ready()[0], "announcements are answered")
            await leaf.announce()
            assert agent._registrar is not None
            before = weakref.ref(agent._registrar)
            fleet = weakref.ref(agent._registrar._fleet)
            collections.clear()
            await agent.apply(Applied(config, ConfigChange(live=frozenset({"leaf"})), (), {}, {}))
            await until(lambda: agent._registrar not in (None, before()), "the next term")  # noqa: B023
            await until(lambda: (before(), fleet()) == (None, None), "the one before is gone")  # noqa: B023
            assert (2 in collections) is (term == terms)
    finally:
        stopping.set()
        await task
