"""The leaf's link when somebody meddles with its consumer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.contract import link_consumer
from agent.leaf.link import act
from agent.leaf.link.states import LinkState
from tests.harness.servers import ServerPair
from tests.harness.wait import until
from tests.harness.watched_link import WatchedRoad, open_watched_road


@pytest_asyncio.fixture
async def road(world: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedRoad]:
    """A leaf and a hub between which data flows."""
    async with open_watched_road(world, tmp_path / "state") as one:
        yield one


async def test_a_link_consumer_that_was_deleted_is_replaced_by_a_new_epoch(road: WatchedRoad) -> None:
    old, deleted = road.epoch, time.monotonic()
    await road.shelf.js.delete_consumer(road.shelf.stream, link_consumer(old))
    await road.sends()
    assert "the link consumer was deleted" in await road.was(LinkState.REPAIRING, deleted)
    await until(lambda: road.epoch != old, "a new epoch")
    await road.reaches(LinkState.FLOWING)
    await road.sends()
    await road.nothing_lost_or_doubled()
    assert await road.shelf.link_consumers() == [link_consumer(road.epoch)]


async def test_what_is_stored_while_an_epoch_begins_is_not_said_to_be_lost(
    road: WatchedRoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequences are above those that the stream had when it was looked at."""
    make_epoch = act.make_epoch

    async def late(*given: Any) -> str:
        await road.sends(5)
        return await make_epoch(*given)

    monkeypatch.setattr(act, "make_epoch", late)
    await road.shelf.js.delete_consumer(road.shelf.stream, link_consumer(road.epoch))
    await until(lambda: road.epochs("consumer_gone") == 1, "a new epoch")
    assert road.agent.state().lost == {}
    await road.nothing_lost_or_doubled()


async def test_a_second_repair_waits_while_the_first_is_fresh(road: WatchedRoad) -> None:
    await road.shelf.js.delete_consumer(road.shelf.stream, link_consumer(road.epoch))
    await until(lambda: road.epochs("consumer_gone") == 1, "a new epoch")
    await road.reaches(LinkState.FLOWING)
    deleted = time.monotonic()
    await road.shelf.js.delete_consumer(road.shelf.stream, link_consumer(road.epoch))
    await road.sends()
    assert "there is at most one in 30 s" in await road.was(LinkState.POSTPONED, deleted)
    road.agent.leaf.link.keeper._may_repair_at = 0.0  # the 30 s are over
    await road.was(LinkState.FLOWING, deleted)
    await road.nothing_lost_or_doubled()


async def test_a_link_that_was_paused_by_hand_and_forgotten_flows_again(road: WatchedRoad) -> None:
    await road.pause_by_hand(3600)
    assert await road.paused_for() > 3000
    await road.sends()

    async def flows() -> bool:
        return await road.paused_for() == 0

    await until(flows, "the consumer flows again")
    await road.nothing_lost_or_doubled()
    assert road.state is LinkState.FLOWING
