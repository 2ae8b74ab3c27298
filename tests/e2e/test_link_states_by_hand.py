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
from tests.harness.watched_link import WatchedLink, open_watched_link


@pytest_asyncio.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows."""
    async with open_watched_link(servers, tmp_path / "state") as one:
        yield one


async def test_a_link_consumer_that_was_deleted_is_replaced_by_a_new_epoch(pair: WatchedLink) -> None:
    old, deleted = pair.epoch, time.monotonic()
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(old))
    await pair.sends()
    assert "the link consumer was deleted" in await pair.was(LinkState.REPAIRING, deleted)
    await until(lambda: pair.epoch != old, "a new epoch")
    await pair.reaches(LinkState.FLOWING)
    await pair.sends()
    await pair.nothing_lost_or_doubled()
    assert await pair.probe.link_consumers() == [link_consumer(pair.epoch)]


async def test_what_is_stored_while_an_epoch_begins_is_not_said_to_be_lost(
    pair: WatchedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequences are above those that the stream had when it was looked at."""
    make_epoch = act.make_epoch

    async def late(*given: Any) -> str:
        await pair.sends(5)
        return await make_epoch(*given)

    monkeypatch.setattr(act, "make_epoch", late)
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    await until(lambda: pair.epochs("consumer_gone") == 1, "a new epoch")
    assert pair.agent.state().lost == {}
    await pair.nothing_lost_or_doubled()


async def test_a_second_repair_waits_while_the_first_is_fresh(pair: WatchedLink) -> None:
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    await until(lambda: pair.epochs("consumer_gone") == 1, "a new epoch")
    await pair.reaches(LinkState.FLOWING)
    deleted = time.monotonic()
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    await pair.sends()
    assert "there is at most one in 30 s" in await pair.was(LinkState.POSTPONED, deleted)
    pair.agent.leaf.link.controller._may_repair_at = 0.0  # the 30 s are over
    await pair.was(LinkState.FLOWING, deleted)
    await pair.nothing_lost_or_doubled()


async def test_a_link_that_was_paused_by_hand_and_forgotten_flows_again(pair: WatchedLink) -> None:
    await pair.pause_by_hand(3600)
    assert await pair.paused_for() > 3000
    await pair.sends()

    async def flows() -> bool:
        return await pair.paused_for() == 0

    await until(flows, "the consumer flows again")
    await pair.nothing_lost_or_doubled()
    assert pair.state is LinkState.FLOWING
