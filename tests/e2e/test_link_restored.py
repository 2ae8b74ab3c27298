"""Stores that are restored from an older copy: the epoch that repairs it sends what is missing and little
else, however much the stores hold."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.contract import link_consumer
from agent.leaf.link import checkpoints, controller, decide
from agent.server import permissions
from tests.e2e.test_link_repair import all_of_the_device, copied, older_by_ten, put_back
from tests.harness.agents import CLASS
from tests.harness.linked_pair import LinkedPair, open_road
from tests.harness.servers import open_world
from tests.harness.wait import until


@pytest_asyncio.fixture
async def road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LinkedPair]:
    """A leaf and a hub between which data flows, once both were compared. Each checkpoint is noted, and one
    repair may follow the other at once. The agent's user may reset consumers, which it otherwise may not."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 60.0)
    monkeypatch.setattr(controller, "REPAIR_EVERY", 0.5)
    monkeypatch.setattr(checkpoints, "APART", 0.0)
    monkeypatch.setattr(permissions, "_CONSUMER_VERBS", (*permissions._CONSUMER_VERBS, "RESET"))
    async with open_world(tmp_path, "edge-1") as world, open_road(world, tmp_path / "state") as one:
        yield one


async def ten_more(road: LinkedPair) -> None:
    """Both sides agree on ten more batches."""
    await road.send(10)
    await road.agreed()


async def from_device(road: LinkedPair, count: int) -> None:
    """A device publishes to the leaf's server, and the hub takes it."""
    device = await road.world.leaf.connect("device")
    last = (await road.shelf.js.stream_info(road.shelf.stream)).last + count
    for number in range(count):
        await device.publish("tel.edge-1.normal.pump.pressure", str(number).encode())

    async def stored() -> bool:
        return (await road.shelf.js.stream_info(road.shelf.stream)).last == last

    await until(stored, "the leaf's stream has stored them")
    await road.hub.holds("edge-1", last)


async def saved(road: LinkedPair) -> None:
    """Return when the agent has written down what was agreed on."""
    current = road.agent.leaf._state.current
    await until(lambda: road.agent.state().checkpoint == current.checkpoint, "the state is on disk")


async def test_a_hub_restored_while_acknowledgements_trail_is_sent_what_it_lacks_and_no_more(
    road: LinkedPair, tmp_path: Path
) -> None:
    """As under a steady flow: the ack floor stands below what the restored hub holds, and tells nothing."""
    hub = road.world.hub
    await older_by_ten(road, hub, tmp_path / "copy")
    hub.pause()
    name = f"CONSUMER.RESET.{road.shelf.stream}.{link_consumer(road.epoch)}"
    await road.shelf.js.api(name, {"seq": 1})
    await put_back(hub, tmp_path / "copy")
    await road.send(5)
    await road.exactly_once()
    assert road.epochs("hub_lost") == 1


async def test_a_hub_restored_while_the_agent_is_dead_is_sent_what_came_since_the_copy(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.hub, tmp_path / "copy")
    await saved(road)
    await road.agent.crash()
    await put_back(road.world.hub, tmp_path / "copy")
    await road.world.leaf.wait_linked()
    await from_device(road, 20)
    assert set(road.sent) > set(await road.arrived()), "every cursor looks well, and ten are missing"
    await road.start_agent()
    await road.exactly_once()
    assert road.epochs("hub_lost") == 1


async def test_a_leaf_restored_from_before_the_newest_checkpoint_sends_nothing_again(
    road: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(road, road.world.leaf, tmp_path / "copy")
    await saved(road)
    await road.agent.crash()
    newest = road.agent.state().checkpoint[CLASS].leaf_seq
    await put_back(road.world.leaf, tmp_path / "copy")
    await road.world.leaf.wait_linked()
    await from_device(road, 30)
    info = await road.shelf.js.stream_info(road.shelf.stream)
    assert info.last > newest, "where the newest checkpoint stood is another message now"
    await road.start_agent()
    await road.send(5)
    await road.exactly_once()
    await until(lambda: all_of_the_device(road), "what a device stored meanwhile has arrived too")
    assert road.epochs("stream_put_back") == 1
    assert (await road.link_consumer()).start > 10


@pytest.mark.parametrize("older", ["hub", "leaf"])
async def test_hub_and_leaf_restored_at_once_hold_all_that_either_copy_held(
    road: LinkedPair, tmp_path: Path, older: str
) -> None:
    first, second = (road.world.hub, road.world.leaf) if older == "hub" else (road.world.leaf, road.world.hub)
    await ten_more(road)
    await copied(first, tmp_path / "first")
    await road.agent.ready()
    await ten_more(road)
    await copied(second, tmp_path / "second")
    await road.agent.ready()
    await ten_more(road)
    await saved(road)
    await road.agent.crash()
    for node, copy in ((first, "first"), (second, "second")):
        await node.kill()
        shutil.rmtree(node.config.store_dir)
        shutil.copytree(tmp_path / copy, node.config.store_dir)
    await first.start()
    await second.start()
    await road.world.leaf.wait_linked()
    await road.start_agent()
    del road.sent[20:]  # these were in the lost stores only
    await road.send(5)
    await road.exactly_once()
