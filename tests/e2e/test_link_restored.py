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
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.servers import open_server_pair
from tests.harness.wait import until


@pytest_asyncio.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LinkedPair]:
    """A leaf and a hub between which data flows, once both were compared. Each checkpoint is noted, and one
    repair may follow the other at once. The agent's user may reset consumers, which it otherwise may not."""
    monkeypatch.setattr(decide, "ANSWER_WITHIN", 60.0)
    monkeypatch.setattr(controller, "REPAIR_EVERY", 0.5)
    monkeypatch.setattr(checkpoints, "SPACING_SECONDS", 0.0)
    monkeypatch.setattr(permissions, "_CONSUMER_VERBS", (*permissions._CONSUMER_VERBS, "RESET"))
    async with (
        open_server_pair(tmp_path, "edge-1") as servers,
        open_linked_pair(servers, tmp_path / "state") as one,
    ):
        yield one


async def ten_more(pair: LinkedPair) -> None:
    """Both sides agree on ten more batches."""
    await pair.send(10)
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
    await put_back(hub, tmp_path / "copy")
    await pair.send(5)
    await pair.exactly_once()
    assert pair.epochs("hub_lost") == 1


async def test_a_hub_restored_while_the_agent_is_dead_is_sent_what_came_since_the_copy(
    pair: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(pair, pair.servers.hub, tmp_path / "copy")
    await saved(pair)
    await pair.agent.crash()
    await put_back(pair.servers.hub, tmp_path / "copy")
    await pair.servers.leaf.wait_linked()
    await from_device(pair, 20)
    assert set(pair.sent) > set(await pair.arrived()), "every cursor looks well, and ten are missing"
    await pair.start_agent()
    await pair.exactly_once()
    assert pair.epochs("hub_lost") == 1


async def test_a_leaf_restored_from_before_the_newest_checkpoint_sends_nothing_again(
    pair: LinkedPair, tmp_path: Path
) -> None:
    await older_by_ten(pair, pair.servers.leaf, tmp_path / "copy")
    await saved(pair)
    await pair.agent.crash()
    newest = pair.agent.state().checkpoint[CLASS].leaf_seq
    await put_back(pair.servers.leaf, tmp_path / "copy")
    await pair.servers.leaf.wait_linked()
    await from_device(pair, 30)
    info = await pair.probe.js.stream_info(pair.probe.stream)
    assert info.last > newest, "where the newest checkpoint stood is another message now"
    await pair.start_agent()
    await pair.send(5)
    await pair.exactly_once()
    await until(lambda: all_of_the_device(pair), "what a device stored meanwhile has arrived too")
    assert pair.epochs("stream_put_back") == 1
    assert (await pair.link_consumer()).start > 10


@pytest.mark.parametrize("older", ["hub", "leaf"])
async def test_hub_and_leaf_restored_at_once_hold_all_that_either_copy_held(
    pair: LinkedPair, tmp_path: Path, older: str
) -> None:
    first, second = (
        (pair.servers.hub, pair.servers.leaf) if older == "hub" else (pair.servers.leaf, pair.servers.hub)
    )
    await ten_more(pair)
    await copied(first, tmp_path / "first")
    await pair.agent.ready()
    await ten_more(pair)
    await copied(second, tmp_path / "second")
    await pair.agent.ready()
    await ten_more(pair)
    await saved(pair)
    await pair.agent.crash()
    for node, copy in ((first, "first"), (second, "second")):
        await node.kill()
        shutil.rmtree(node.config.store_dir)
        shutil.copytree(tmp_path / copy, node.config.store_dir)
    await first.start()
    await second.start()
    await pair.servers.leaf.wait_linked()
    await pair.start_agent()
    del pair.sent[20:]  # these were in the lost stores only
    await pair.send(5)
    await pair.exactly_once()
