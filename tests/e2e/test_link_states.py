"""The leaf's link when it is cut, when a peer goes or hangs, and when somebody meddles with its consumer.

Each state is named, and nothing is lost or doubled.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.contract import link_consumer
from agent.leaf.link import act, announcer, decide
from agent.leaf.link.status import LinkState
from tests.harness.servers import ServerPair
from tests.harness.wait import until
from tests.harness.watched_link import WatchedLink, open_watched_link


@pytest_asyncio.fixture
async def pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[WatchedLink]:
    """A leaf and a hub between which data flows."""
    async with open_watched_link(servers, tmp_path / "state") as pair:
        yield pair


async def test_a_cut_link_is_named_and_held_and_flows_when_it_is_back(pair: WatchedLink) -> None:
    proxy, cut = pair.servers.leaf.proxy, time.monotonic()
    proxy.cut()
    assert "readings are kept here" in await pair.was(LinkState.DOWN, cut)
    await pair.sends()

    async def waits() -> bool:
        return await pair.paused_for() > 0

    await until(waits, "the consumer waits, so that nothing flows before the compare")
    assert pair.agent.value("petiole_link_state", **{"class": "normal", "state": "down"}) == 1
    back = time.monotonic()
    proxy.restore()
    await pair.was(LinkState.FLOWING, back)
    assert LinkState.COMPARING in pair.states(back)
    await pair.nothing_lost_or_doubled()
    assert await pair.paused_for() == 0


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
    assert not 10 < await pair.pause_by_hand(end) < 60
    await until(as_it_should_be, what)
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.FLOWING)
    await pair.nothing_lost_or_doubled()
    assert await pair.paused_for() == 0


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


async def test_a_link_consumer_that_was_deleted_is_replaced_by_a_new_epoch(pair: WatchedLink) -> None:
    old, deleted = pair.epoch, time.monotonic()
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(old))
    await pair.sends()
    assert "the link consumer is gone" in await pair.was(LinkState.REPAIRING, deleted)
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

    async def late(*given: Any, **more: Any) -> str:
        await pair.sends(5)
        return await make_epoch(*given, **more)

    monkeypatch.setattr(act, "make_epoch", late)
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    pair.agent.leaf.link.controller.look()
    await until(lambda: pair.epochs("consumer_gone") == 1, "a new epoch")
    assert pair.agent.state().lost == {}
    await pair.nothing_lost_or_doubled()


async def test_a_second_repair_waits_while_the_first_is_fresh(pair: WatchedLink) -> None:
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    pair.agent.leaf.link.controller.look()
    await until(lambda: pair.epochs("consumer_gone") == 1, "a new epoch")
    await pair.reaches(LinkState.FLOWING)
    deleted = time.monotonic()
    await pair.probe.js.delete_consumer(pair.probe.stream, link_consumer(pair.epoch))
    pair.agent.leaf.link.controller.look()
    await pair.sends()
    assert "there is at most one in 30 s" in await pair.was(LinkState.POSTPONED, deleted)
    for work in pair.agent.leaf.link.controller._work.values():
        work.may_repair_at = 0.0  # the 30 s are over
    await pair.was(LinkState.FLOWING, deleted)
    await pair.nothing_lost_or_doubled()


async def test_a_link_that_was_paused_by_hand_and_forgotten_flows_again(pair: WatchedLink) -> None:
    assert await pair.pause_by_hand(3600) > 3000
    await pair.sends()

    async def flows() -> bool:
        return await pair.paused_for() == 0

    await until(flows, "the consumer flows again")
    await pair.nothing_lost_or_doubled()
    await pair.reaches(LinkState.FLOWING)
