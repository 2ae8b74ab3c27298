"""A hub's server that has what it was sent and takes nothing of it: it believes to have had it. Made by a
reset of the link consumer, which begins to count anew what the hub's server counts on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from agent.base.nats_server import find_binary, parse_version, version_of
from agent.config import LinkConfig
from agent.contract import link_consumer
from agent.jetstream import JetStreamError
from agent.leaf.link import controller, decide
from agent.leaf.link.status import LinkState
from agent.leaf.link.window import LARGEST, Window
from agent.server import permissions
from tests.harness.servers import open_server_pair
from tests.harness.wait import WAIT_SECONDS, until
from tests.harness.watched_link import WatchedLink, open_watched_link

ASKS_AGAIN = (2, 15, 3)
"""From this nats-server on a source asks the leaf again after such a reset, so the hub does not stall
(`processInboundSourceMsg` in server/stream.go)."""


@pytest_asyncio.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows. The agent's user of the leaf's server may reset consumers,
    which it otherwise may not. The window is that of a fast line: over a slower one a full window makes the
    leaf's server send heartbeats, at which the hub's server asks again."""
    monkeypatch.setattr(permissions, "_CONSUMER_VERBS", (*permissions._CONSUMER_VERBS, "RESET"))
    monkeypatch.setattr(decide, "STUCK_AFTER", 4.0)
    monkeypatch.setattr(controller, "looked", lambda window, look: Window(size=LARGEST, limit=LARGEST))
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.0)
    async with (
        open_server_pair(tmp_path, "edge-1") as servers,
        open_watched_link(servers, tmp_path / "state") as one,
    ):
        yield one


async def test_a_link_whose_hub_takes_nothing_is_seen_and_flows_again_losing_nothing(
    pair: WatchedLink,
) -> None:
    version = parse_version(await version_of(find_binary()))
    assert version is not None
    stalls = version < ASKS_AGAIN
    for _ in range(400):
        await pair.sends(1)
    await pair.nothing_lost_or_doubled()
    async with pair.flows_on(5):
        reset = time.monotonic()
        await _reset_behind_all(pair)
        if stalls:
            assert "takes nothing of what was sent" in await pair.was(LinkState.REPAIRING, reset)
        await until(lambda: pair.state is LinkState.FLOWING, "data flows again")
    assert pair.epochs("stalled") == stalls
    await pair.nothing_lost_or_doubled()


async def test_what_the_hub_acknowledged_and_never_stored_comes_again_though_more_has_flowed_since(
    pair: WatchedLink,
) -> None:
    """The registrar starts when no cursor shows it any more. A reset behind what waits stands for a slow
    leaf, which has delivered that before it answers the hub's server."""
    await pair.agreed()
    await pair.stop_registrar()
    pair.agent.leaf.link.controller.pause(60)
    await until(lambda: pair.state is LinkState.PAUSED, "the link is paused")
    await pair.sends(4)
    await pair.servers.hub.kill()
    await _reset_behind_all(pair)
    await pair.servers.hub.start()
    await pair.servers.leaf.wait_linked()
    await until(lambda: _is_heard(pair), "the leaf has answered the hub's server")
    pair.agent.leaf.link.controller.resume()
    async with pair.flows_on(20):
        before = len(pair.sent)
        await until(lambda: _is_there(pair, before), "later messages are at the hub")
    await pair.start_registrar()
    lost, _ = await pair.lost_and_doubled(WAIT_SECONDS)
    assert lost == []
    assert pair.epochs("hub_lost") == 1


async def _reset_behind_all(pair: WatchedLink) -> None:
    name = f"CONSUMER.RESET.{pair.probe.stream}.{link_consumer(pair.epoch)}"
    last = (await pair.probe.js.stream_info(pair.probe.stream)).last
    await pair.probe.js.api(name, {"seq": last + 1})


async def _is_heard(pair: WatchedLink) -> bool:
    with suppress(JetStreamError):
        return all(source["active"] >= 0 for source in (await pair.hub.aggregate()).sources)
    return False


async def _is_there(pair: WatchedLink, number: int) -> bool:
    with suppress(JetStreamError):
        return len(pair.sent) > number and pair.sent[number] in await pair.arrived()
    return False
