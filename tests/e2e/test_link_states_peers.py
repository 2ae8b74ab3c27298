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
from tests.harness.watched_link import WatchedLink, open_watched_link


@pytest_asyncio.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows."""
    async with open_watched_link(servers, tmp_path / "state") as one:
        yield one


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper waits for the registrar's answer for a tenth of its time."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 0.5)
    monkeypatch.setattr(announcer, "ANSWER_SECONDS", 0.5)


@pytest.mark.parametrize("how", ["killed", "stopped in order"])
async def test_a_hub_that_goes_is_named_and_the_link_flows_when_it_is_back(
    pair: WatchedLink, how: str
) -> None:
    hub, gone = pair.servers.hub, time.monotonic()
    async with pair.flows_on():
        await (hub.kill() if how == "killed" else hub.stop())
        assert "the link to the hub is down" in await pair.was(LinkState.DOWN, gone)
        await pair.sends()
        back = time.monotonic()
        await hub.start()
        await pair.was(LinkState.FLOWING, back)
    await pair.nothing_lost_or_doubled()


@pytest.mark.usefixtures("impatient")
async def test_a_hub_that_hangs_is_told_from_a_link_that_is_down(pair: WatchedLink) -> None:
    hub, hung = pair.servers.hub, time.monotonic()
    async with pair.flows_on():
        hub.pause()
        try:
            pair.agent.leaf.link.controller.announce_now()  # instead of the turn that comes every ten seconds
            assert "the hub's registrar does not answer" in await pair.was(LinkState.UNVERIFIED, hung)
            assert LinkState.DOWN not in pair.states(hung)
        finally:
            hub.resume()
        await pair.reaches(LinkState.FLOWING)
    await pair.nothing_lost_or_doubled()


@pytest.mark.parametrize("how", ["killed", "stopped in order"])
async def test_a_leaf_server_that_goes_is_named_and_the_link_flows_when_it_is_back(
    pair: WatchedLink, how: str
) -> None:
    leaf, gone = pair.servers.leaf, time.monotonic()
    async with pair.flows_on():
        await (leaf.kill() if how == "killed" else leaf.stop())
        assert "the local NATS server cannot be used" in await pair.was(LinkState.AWAY, gone)
        back = time.monotonic()
        await leaf.start()
        await pair.was(LinkState.FLOWING, back)
        await pair.sends()
    await pair.nothing_lost_or_doubled()


async def test_a_leaf_server_that_hangs_is_named(pair: WatchedLink) -> None:
    leaf, hung = pair.servers.leaf, time.monotonic()
    async with pair.flows_on():
        leaf.pause()
        try:
            pair.agent.leaf.link.controller.look()  # instead of the turn that comes every five seconds
            assert "the local NATS server cannot be used" in await pair.was(LinkState.AWAY, hung)
        finally:
            leaf.resume()
        await pair.reaches(LinkState.FLOWING)
    await pair.nothing_lost_or_doubled()


@pytest.mark.usefixtures("impatient")
async def test_data_flows_unverified_while_the_registrar_is_away_and_is_compared_when_it_is_back(
    pair: WatchedLink,
) -> None:
    away = time.monotonic()
    await pair.stop_registrar()
    pair.agent.leaf.link.controller.announce_now()
    assert "see whether `petiole run` runs on the hub" in await pair.was(LinkState.UNVERIFIED, away)
    await pair.sends()
    await pair.nothing_lost_or_doubled()
    proxy = pair.servers.leaf.proxy
    proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.sends()
    proxy.restore()
    await pair.nothing_lost_or_doubled()  # a hub without its registrar must not stop the flow
    assert pair.state is LinkState.UNVERIFIED
    await pair.start_registrar()
    await pair.reaches(LinkState.FLOWING)
    await pair.sends()
    await pair.nothing_lost_or_doubled()
