"""Stores that are lost, or restored from an older copy, on either side: the link finds it, and one new epoch
sends what is missing and little else, however much the stores hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from agent.contract import link_consumer
from agent.leaf.link import controller, decide
from agent.leaf.link.status import LinkState
from agent.server import permissions
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.registrar import LeafHand
from tests.harness.servers import Node, open_server_pair
from tests.harness.wait import until


@pytest_asyncio.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LinkedPair]:
    """A leaf and a hub between which data flows, once both were compared: on a busy machine the registrar's
    answer may take longer than the time after which data flows without it. Each checkpoint is noted, one
    repair may follow the other at once, and the agent's user may reset consumers."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 60.0)
    monkeypatch.setattr(controller, "REPAIR_EVERY", 0.5)
    monkeypatch.setattr("agent.leaf.state.SPACING_SECONDS", 0.0)
    monkeypatch.setattr(permissions, "_CONSUMER_VERBS", (*permissions._CONSUMER_VERBS, "RESET"))
    async with (
        open_server_pair(tmp_path, "edge-1") as servers,
        open_linked_pair(servers, tmp_path / "state") as pair,
    ):
        yield pair


async def older_by_ten(pair: LinkedPair, node: Node, copy: Path) -> None:
    """A copy of a server's store that holds ten batches, while both sides agree on ten more."""
    await pair.send(10)
    await pair.agreed()
    await node.back_up(copy)
    await pair.agent.ready()
    await pair.reaches(LinkState.FLOWING)
    await pair.send(10)
    await pair.agreed()


async def test_a_hub_wiped_before_anything_was_agreed_on_is_filled_again(pair: LinkedPair) -> None:
    """The agent dies between its announcement and the answer, so that data flows into the empty hub before
    anybody compares."""
    await pair.send(10)
    await until(lambda: _acknowledged(pair), "the hub has acknowledged all")
    await pair.agent.crash()
    state = pair.agent.state()
    state.checkpoint.clear()  # as in the first seconds of an epoch
    pair.agent.state_path.write_bytes(msgspec.json.encode(state))
    await pair.servers.hub.wipe()
    await pair.servers.leaf.wait_linked()
    agent = LeafHand(pair.servers.leaf, pair.probe.nc)
    agent.epoch = pair.epoch
    said = replace(await agent.announcement(), machine=state.machine)

    async def taken_in() -> bool:
        return (await agent.say(said.encode())).refused is None

    await until(taken_in, "the hub takes the leaf in")
    device = await pair.servers.leaf.connect("device")
    for number in range(3):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())
    await device.flush()
    await pair.hub.holds("edge-1", (await pair.probe.js.stream_info(pair.probe.stream)).last)
    assert not await pair.arrived(), "every cursor looks well, and all that was sent is missing"
    await pair.start_agent()
    await pair.all_there()
    assert pair.epochs("hub_lost") == 1


async def _acknowledged(pair: LinkedPair) -> bool:
    info = await pair.probe.js.stream_info(pair.probe.stream)
    return (await pair.link_consumer()).ack_floor == info.last


async def test_messages_purged_before_they_were_sent_are_named(pair: LinkedPair) -> None:
    await pair.send(5)
    await pair.agreed()
    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    held = await pair.probe.js.stream_info(pair.probe.stream)
    await pair.send(5)
    await pair.probe.js.purge(pair.probe.stream, held.last + 3)
    pair.servers.leaf.proxy.restore()
    await pair.reaches(LinkState.DISCARDED)
    assert f"{held.last + 1} to {held.last + 3}" in pair.agent.leaf.link.status.sentence
    await pair.send(1)
    await pair.agreed()


async def from_device(pair: LinkedPair, count: int) -> None:
    """A device publishes to the leaf's server, and the hub takes it."""
    device = await pair.servers.leaf.connect("device")
    last = (await pair.probe.js.stream_info(pair.probe.stream)).last + count
    for number in range(count):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())

    async def stored() -> bool:
        return (await pair.probe.js.stream_info(pair.probe.stream)).last == last

    await until(stored, "the leaf's stream has stored them")
    await pair.hub.holds("edge-1", last)


async def saved(pair: LinkedPair) -> None:
    """Return when the agent has written down what was agreed on."""
    current = pair.agent.leaf._state.current
    await until(lambda: pair.agent.state().checkpoint == current.checkpoint, "the state is on disk")


async def test_a_hub_restored_while_acknowledgements_trail_is_sent_what_it_lacks_and_no_more(
    pair: LinkedPair, tmp_path: Path
) -> None:
    """As under a steady flow: the ack floor stands below what the restored hub holds, and tells nothing."""
    hub = pair.servers.hub
    await older_by_ten(pair, hub, tmp_path / "copy")
    hub.pause()
    name = f"CONSUMER.RESET.{pair.probe.stream}.{link_consumer(pair.epoch)}"
    await pair.probe.js.api(name, {"seq": 1})
    await hub.restore(tmp_path / "copy")
    await pair.send(5)
    await pair.exactly_once()
    assert pair.epochs("hub_lost") == 1


async def test_a_hub_restored_while_the_agent_is_dead_is_sent_what_came_since_the_copy(
    pair: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(pair, pair.servers.hub, tmp_path / "copy")
    await saved(pair)
    # The leaf's server sends again by itself what is not acknowledged.
    await until(lambda: _acknowledged(pair), "the hub has acknowledged all")
    await pair.agent.crash()
    await pair.servers.hub.restore(tmp_path / "copy")
    await pair.servers.leaf.wait_linked()
    await from_device(pair, 20)
    assert set(pair.sent) > set(await pair.arrived()), "every cursor looks well, and ten are missing"
    await pair.start_agent()
    await pair.exactly_once()
    assert pair.epochs("hub_lost") == 1


async def restarted(pair: LinkedPair) -> None:
    """The leaf's server is killed and started, and the agent is connected to it."""
    await pair.servers.leaf.kill()
    await pair.servers.leaf.start()
    await pair.agent.ready()


async def test_a_server_that_forgets_its_link_consumer_during_a_cut_or_over_an_emptied_stream_goes_on(
    pair: LinkedPair,
) -> None:
    await pair.send(10)
    await pair.agreed()

    pair.servers.leaf.proxy.cut()
    await pair.reaches(LinkState.DOWN)
    await pair.send(5)
    await restarted(pair)
    await pair.send(5)
    pair.servers.leaf.proxy.restore()
    await pair.exactly_once()
    await pair.agreed()

    await pair.probe.js.purge(pair.probe.stream, (await pair.probe.js.stream_info(pair.probe.stream)).last)
    await restarted(pair)
    await pair.send(5)
    await pair.exactly_once()
    assert pair.epochs("consumer_gone") == 2
