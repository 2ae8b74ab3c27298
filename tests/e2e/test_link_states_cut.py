"""The leaf's link while it is cut and comes back: each state is named, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.leaf.link.states import LinkState
from tests.harness.servers import ServerPair
from tests.harness.wait import until
from tests.harness.watched_link import WatchedRoad, open_watched_road


@pytest_asyncio.fixture
async def road(world: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedRoad]:
    """A leaf and a hub between which data flows."""
    async with open_watched_road(world, tmp_path / "state") as one:
        yield one


async def test_a_cut_link_is_named_and_held_and_flows_when_it_is_back(road: WatchedRoad) -> None:
    cable, cut = road.world.leaf.proxy, time.monotonic()
    cable.cut()
    assert "readings are kept here" in await road.was(LinkState.DOWN, cut)
    await road.sends()
    assert await road.paused_for() > 0, "the consumer waits, so that nothing flows before the compare"
    assert road.agent.value("petiole_link_state", **{"class": "normal", "state": "down"}) == 1
    back = time.monotonic()
    cable.restore()
    await road.was(LinkState.FLOWING, back)
    assert LinkState.COMPARING in road.states(back)
    await road.nothing_lost_or_doubled()
    assert await road.paused_for() == 0


async def test_a_flapping_link_loses_and_doubles_nothing(road: WatchedRoad) -> None:
    cable, epoch = road.world.leaf.proxy, road.epoch
    async with road.flows_on():
        for up in (0.0, 0.02, 0.3):
            cable.cut()
            await road.reaches(LinkState.DOWN)
            cable.restore()
            await road.world.leaf.wait_linked()
            await asyncio.sleep(up)  # how long the link stays up
        await road.reaches(LinkState.FLOWING)
    await road.nothing_lost_or_doubled()
    assert road.epoch == epoch, "a link that only flaps needs no repair"


@pytest.mark.parametrize(
    ("end", "what"),
    [(-3600.0, "a clock was set forward: the pause is over"), (3600.0, "a clock was set back: an hour more")],
)
async def test_a_pause_whose_end_a_stepped_clock_moved_is_set_anew(
    road: WatchedRoad, end: float, what: str
) -> None:
    async def as_it_should_be() -> bool:
        return 10 < await road.paused_for() < 60

    road.world.leaf.proxy.cut()
    await until(as_it_should_be, "the consumer is paused")
    await road.sends()
    await road.pause_by_hand(end)
    assert not await as_it_should_be()
    await until(as_it_should_be, what)
    road.world.leaf.proxy.restore()
    await road.reaches(LinkState.FLOWING)
    await road.nothing_lost_or_doubled()
    assert await road.paused_for() == 0
