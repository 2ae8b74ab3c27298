"""The leaf's link while a server or the registrar at one of its ends is killed, hangs or is away."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.leaf.link import announcer, decide
from agent.leaf.link.states import LinkState
from tests.harness.servers import ServerPair
from tests.harness.watched_link import WatchedRoad, open_watched_road


@pytest_asyncio.fixture
async def road(world: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedRoad]:
    """A leaf and a hub between which data flows."""
    async with open_watched_road(world, tmp_path / "state") as one:
        yield one


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper waits for the registrar's answer for a tenth of its time."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 0.5)
    monkeypatch.setattr(announcer, "ANSWER_SECONDS", 0.5)


@pytest.mark.parametrize("how", ["killed", "stopped in order"])
async def test_a_hub_that_goes_is_named_and_the_link_flows_when_it_is_back(
    road: WatchedRoad, how: str
) -> None:
    hub, gone = road.world.hub, time.monotonic()
    async with road.flows_on():
        await (hub.kill() if how == "killed" else hub.stop())
        assert "the link to the hub is down" in await road.was(LinkState.DOWN, gone)
        await road.sends()
        back = time.monotonic()
        await hub.start()
        await road.was(LinkState.FLOWING, back)
    await road.nothing_lost_or_doubled()


@pytest.mark.usefixtures("impatient")
async def test_a_hub_that_hangs_is_told_from_a_link_that_is_down(road: WatchedRoad) -> None:
    hub, hung = road.world.hub, time.monotonic()
    async with road.flows_on():
        hub.pause()
        try:
            road.agent.leaf.link.keeper.announce_now()  # instead of the turn that comes every ten seconds
            assert "the hub's registrar does not answer" in await road.was(LinkState.UNVERIFIED, hung)
            assert LinkState.DOWN not in road.states(hung)
        finally:
            hub.resume()
        await road.reaches(LinkState.FLOWING)
    await road.nothing_lost_or_doubled()


@pytest.mark.parametrize("how", ["killed", "stopped in order"])
async def test_a_leaf_server_that_goes_is_named_and_the_link_flows_when_it_is_back(
    road: WatchedRoad, how: str
) -> None:
    leaf, gone = road.world.leaf, time.monotonic()
    async with road.flows_on():
        await (leaf.kill() if how == "killed" else leaf.stop())
        assert "the local NATS server cannot be used" in await road.was(LinkState.AWAY, gone)
        back = time.monotonic()
        await leaf.start()
        await road.was(LinkState.FLOWING, back)
        await road.sends()
    await road.nothing_lost_or_doubled()


async def test_a_leaf_server_that_hangs_is_named(road: WatchedRoad) -> None:
    leaf, hung = road.world.leaf, time.monotonic()
    async with road.flows_on():
        leaf.pause()
        try:
            road.agent.leaf.link.keeper.look()  # instead of the turn that comes every five seconds
            assert "the local NATS server cannot be used" in await road.was(LinkState.AWAY, hung)
        finally:
            leaf.resume()
        await road.reaches(LinkState.FLOWING)
    await road.nothing_lost_or_doubled()


@pytest.mark.usefixtures("impatient")
async def test_data_flows_unverified_while_the_registrar_is_away_and_is_compared_when_it_is_back(
    road: WatchedRoad,
) -> None:
    away = time.monotonic()
    await road.stop_registrar()
    road.agent.leaf.link.keeper.announce_now()
    assert "see whether `petiole run` runs on the hub" in await road.was(LinkState.UNVERIFIED, away)
    await road.sends()
    await road.nothing_lost_or_doubled()
    cable = road.world.leaf.proxy
    cable.cut()
    await road.reaches(LinkState.DOWN)
    await road.sends()
    cable.restore()
    await road.nothing_lost_or_doubled()  # a hub without its registrar must not stop the flow
    assert road.state is LinkState.UNVERIFIED
    await road.start_registrar()
    await road.reaches(LinkState.FLOWING)
    await road.sends()
    await road.nothing_lost_or_doubled()
