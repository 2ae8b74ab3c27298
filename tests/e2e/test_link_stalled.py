"""A hub's server that has what it was sent and takes nothing of it: it believes to have had it. Made by a
reset of the link consumer, which begins to count anew what the hub's server counts on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.config import LinkConfig
from agent.contract import link_consumer
from agent.leaf.link import decide
from agent.leaf.link.status import LinkState
from agent.server import permissions
from tests.harness.servers import open_server_pair
from tests.harness.wait import until
from tests.harness.watched_link import WatchedLink, open_watched_link


@pytest_asyncio.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows. The agent's user of the leaf's server may reset consumers,
    which it otherwise may not."""
    monkeypatch.setattr(permissions, "_CONSUMER_VERBS", (*permissions._CONSUMER_VERBS, "RESET"))
    monkeypatch.setattr(decide, "STUCK_AFTER", 4.0)
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.0)
    async with (
        open_server_pair(tmp_path, "edge-1") as servers,
        open_watched_link(servers, tmp_path / "state") as one,
    ):
        yield one


async def test_a_link_whose_hub_takes_nothing_is_seen_and_flows_again_losing_nothing(
    pair: WatchedLink,
) -> None:
    for _ in range(400):
        await pair.sends(1)
    await pair.nothing_lost_or_doubled()
    async with pair.flows_on(5):
        reset = time.monotonic()
        name = f"CONSUMER.RESET.{pair.probe.stream}.{link_consumer(pair.epoch)}"
        last = (await pair.probe.js.stream_info(pair.probe.stream)).last
        await pair.probe.js.api(name, {"seq": last + 1})
        assert "takes nothing of what was sent" in await pair.was(LinkState.REPAIRING, reset)
        await until(lambda: pair.state is LinkState.FLOWING, "data flows again")
    assert pair.epochs("stalled") == 1
    await pair.nothing_lost_or_doubled()
