"""Stores that are lost or put back on either side: the link finds it, and one new epoch repairs it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from agent.jetstream import JetStreamError
from agent.leaf.link import decide
from agent.leaf.link.states import LinkState
from tests.harness.linked_pair import LinkedPair, open_road
from tests.harness.registrar import LeafHand
from tests.harness.servers import Node, ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


@pytest_asyncio.fixture
async def road(
    world: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LinkedPair]:
    """A leaf and a hub between which data flows, once both were compared: on a machine that is busy with
    other tests the registrar's answer may take longer than the time after which data flows without it."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 60.0)
    async with open_road(world, tmp_path / "state") as one:
        yield one


async def copied(node: Node, to: Path) -> None:
    """A copy of a server's store, as a backup makes it: while the server is down."""
    await node.stop()
    shutil.copytree(node.config.store_dir, to)
    await node.start()


async def older_by_ten(road: LinkedPair, node: Node, copy: Path) -> None:
    """A copy of a server's store that holds ten batches, while both sides agree on ten more."""
    await road.send(10)
    await road.agreed()
    await copied(node, copy)
    await road.agent.ready()
    await road.reaches(LinkState.FLOWING)
    await road.send(10)
    await road.agreed()


async def put_back(node: Node, copy: Path) -> None:
    """The copy in place of the store, after a crash."""
    await node.kill()
    shutil.rmtree(node.config.store_dir)
    shutil.copytree(copy, node.config.store_dir)
    await node.start()


async def wiped(node: Node) -> None:
    """No store at all, after a crash."""
    await node.kill()
    shutil.rmtree(node.config.store_dir)
    await node.start()


async def test_a_hub_put_back_is_found_under_the_pause_and_nothing_comes_twice(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.hub, tmp_path / "copy")
    await put_back(road.world.hub, tmp_path / "copy")
    await road.send(5)
    await road.exactly_once()
    assert road.epochs("hub_lost") == 1


async def test_a_hub_put_back_while_the_agent_is_dead_is_found_when_it_is_back(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.hub, tmp_path / "copy")
    await road.agent.crash()
    await put_back(road.world.hub, tmp_path / "copy")
    device = await road.world.leaf.connect("device")
    for number in range(20):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())
    await device.flush()
    last = (await road.shelf.js.stream_info(road.shelf.stream)).last
    await road.hub.holds("edge-1", last)
    assert set(road.sent) > set(await road.arrived()), "the server alone has lost some and says nothing"
    await road.start_agent()
    await road.all_there()
    assert road.epochs("hub_lost") == 1


async def test_an_aggregate_deleted_by_hand_is_filled_again_from_what_the_leaf_holds(
    road: LinkedPair,
) -> None:
    await road.send(10)
    await road.agreed()
    await road.world.hub.stop()
    shutil.rmtree(next(road.world.hub.config.store_dir.glob(f"jetstream/*/streams/{AGGREGATE}")))
    await road.world.hub.start()
    await road.send(3)
    await road.exactly_once()
    assert road.epochs("hub_lost") == 1


async def test_a_hub_wiped_before_anything_was_agreed_on_is_filled_again(road: LinkedPair) -> None:
    """The agent dies between its announcement and the answer, so that data flows into the empty hub before
    anybody compares."""
    await road.send(10)
    await until(lambda: _acknowledged(road), "the hub has acknowledged all")
    await road.agent.crash()
    state = road.agent.state()
    state.checkpoint.clear()  # as in the first seconds of an epoch
    road.agent.state_path.write_bytes(msgspec.json.encode(state))
    await wiped(road.world.hub)
    await road.world.leaf.wait_linked()
    agent = LeafHand(road.world.leaf, road.shelf.nc)
    agent.epoch = road.epoch
    said = replace(await agent.announcement(), machine=state.machine)

    async def taken_in() -> bool:
        return (await agent.say(said.encode())).refused is None

    await until(taken_in, "the hub takes the leaf in")
    device = await road.world.leaf.connect("device")
    for number in range(3):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())
    await device.flush()
    await road.hub.holds("edge-1", (await road.shelf.js.stream_info(road.shelf.stream)).last)
    assert not await road.arrived(), "every cursor looks well, and all that was sent is missing"
    await road.start_agent()
    await road.all_there()
    assert road.epochs("hub_lost") == 1


async def _acknowledged(road: LinkedPair) -> bool:
    info = await road.shelf.js.stream_info(road.shelf.stream)
    return (await road.link_consumer()).ack_floor == info.last


async def test_a_leaf_store_wiped_twice_in_a_row_loses_nothing_that_came_after(road: LinkedPair) -> None:
    await road.send(10)
    await road.agreed()
    for _ in range(2):
        await wiped(road.world.leaf)
        await road.agent.ready()
        await until(lambda: _takes(road), "the agent takes readings on the new store")
        await road.all_there()
    assert road.epochs("stream_recreated") == 2


async def _takes(road: LinkedPair) -> bool:
    before = len(road.sent)
    try:
        await road.send(5)
    except Exception:
        return False
    return len(road.sent) == before + 5


async def test_a_leaf_put_back_while_the_agent_runs_is_found_before_anything_is_sent(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.leaf, tmp_path / "copy")
    await put_back(road.world.leaf, tmp_path / "copy")
    await until(lambda: road.epochs("stream_put_back") == 1, "there is a new epoch")
    await road.agent.ready()
    await road.send(5)
    await road.all_there()


async def test_a_leaf_put_back_while_the_agent_is_dead_and_written_on_is_found(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.leaf, tmp_path / "copy")
    agreed = road.agent.leaf._state.current.checkpoint
    # What the state file does not know of yet is not missed in a store that was put back (docs/link.md).
    await until(lambda: road.agent.state().checkpoint == agreed, "the agent has written down what was agreed")
    await road.agent.crash()
    await put_back(road.world.leaf, tmp_path / "copy")
    device = await road.world.leaf.connect("device")
    for number in range(30):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())
    await device.flush()
    await road.start_agent()
    await road.send(5)
    await road.all_there()
    await until(lambda: all_of_the_device(road), "what a device stored meanwhile has arrived too")


async def all_of_the_device(road: LinkedPair) -> bool:
    """Whether the hub holds the thirty messages of a device."""
    info = await road.hub.js.stream_info(AGGREGATE)
    found = set()
    for seq in range(info.first, info.last + 1):
        message = await road.hub.js.get_message(AGGREGATE, seq=seq)
        if message is not None and message.subject.endswith(".pump.pressure"):
            found.add(message.data)
    return len(found) == 30


async def test_a_link_consumer_deleted_by_hand_goes_on_where_the_hub_is(road: LinkedPair) -> None:
    await road.send(10)
    await road.agreed()
    old = road.epoch
    await road.shelf.js.delete_consumer(road.shelf.stream, (await road.link_consumer()).name)
    await road.send(5)
    await until(lambda: road.epoch != old, "there is a new epoch")
    await road.exactly_once()
    assert road.epochs("consumer_gone") == 1


async def test_messages_purged_before_they_were_sent_are_named(road: LinkedPair) -> None:
    await road.send(5)
    await road.agreed()
    road.world.leaf.proxy.cut()
    await road.reaches(LinkState.DOWN)
    held = await road.shelf.js.stream_info(road.shelf.stream)
    await road.send(5)
    await road.shelf.js.purge(road.shelf.stream, held.last + 3)
    road.world.leaf.proxy.restore()
    await road.reaches(LinkState.DISCARDED)
    assert f"{held.last + 1} to {held.last + 3}" in road.agent.leaf.link.board.sentence
    await road.send(1)
    await road.reaches(LinkState.FLOWING)


async def test_a_stream_deleted_by_hand_is_made_again(road: LinkedPair) -> None:
    await road.send(5)
    await road.agreed()
    superuser = road.shelf.js
    try:
        await superuser.api(f"STREAM.DELETE.{road.shelf.stream}", timeout=1)
    except JetStreamError:
        return  # not even the agent may delete what was stored
    raise AssertionError("the agent's own key deletes a stream of readings")
