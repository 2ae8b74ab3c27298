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
from tests.harness.watched_link import WatchedLink, open_watched_link


@pytest_asyncio.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows."""
    async with open_watched_link(servers, tmp_path / "state") as one:
        yield one


async def test_a_cut_link_is_named_and_held_and_flows_when_it_is_back(pair: WatchedLink) -> None:
    proxy, cut = pair.servers.leaf.proxy, time.monotonic()
    proxy.cut()
    assert "readings are kept here" in await pair.was(LinkState.DOWN, cut)
    await pair.sends()
    assert await pair.paused_for() > 0, "the consumer waits, so that nothing flows before the compare"
    assert pair.agent.value("petiole_link_state", **{"class": "normal", "state": "down"}) == 1
    back = time.monotonic()
    proxy.restore()
    await pair.was(LinkState.FLOWING, back)
    assert LinkState.COMPARING in pair.states(back)
    await pair.nothing_lost_or_doubled()
    assert await pair.paused_for() == 0


async def test_a_flapping_link_loses_and_doubles_nothing(pair: WatchedLink) -> None:
    proxy, epoch = pair.servers.leaf.proxy, pair.epoch
    async with pair.flows_on():
        for up in (0.0, 0.02, 0.3):
            proxy.cut()
            await pair.reaches(LinkState.DOWN)
            proxy.restore()
            await pair.servers.leaf.wait_linked()
            await asyncio.sleep(up)  # how long the link stays up
        await pair.reaches(LinkState.FLOWING)
    await pair.nothing_lost_or_doubled()
    assert pair.epoch == epoch, "a link that only flaps needs no repair"


@pytest.mark.parametrize(
    ("end", "what"),
    [(-3600.0, "a clock was set forward: the pause is over"), (3600.0, "a clock was set back: an hour more")],
)
async def test_a_pause_whose_end_a_stepped_clock_moved_is_set_anew(
    pair: WatchedLink, end: float, what: str
) -> None:
    async def as_it_should_be() -> bool:
        return 10 < await pair.paused_for() < 60

    pair.servers.leaf.proxy.cut()
    await until(as_it_should_be, "the consumer is paused")
    await pair.sends()
    await pair.pause_by_hand(end)
    assert not await as_it_should_be()
    await until(as_it_should_be, what)
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.nothing_lost_or_doubled()
    assert await pair.paused_for() == 0
