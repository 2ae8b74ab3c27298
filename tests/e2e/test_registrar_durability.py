"""A hub whose server syncs at intervals: what the registrar says of what a power cut can take; and an
aggregate on three servers of a cluster, the leaf linked to one that does not lead it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from agent.base import clock
from agent.config import SyncInterval
from agent.contract import ACCOUNT, FLEET_BUCKET, Checkpoint, Committed, aggregate
from agent.demo.loopback import LoopbackProxy
from agent.hub.registrar import announce_service, durability
from agent.jetstream import JetStreamError
from agent.server import setup
from tests.harness.cluster import Cluster, open_cluster
from tests.harness.fleet import Member, ids_in
from tests.harness.registrar import HubHand, LeafHand, flowing
from tests.harness.servers import ServerPair, copy_running
from tests.harness.streams import AGGREGATE, ask_again
from tests.harness.wait import WAIT_SECONDS, until

OFTEN = SyncInterval(0.1)


@pytest.fixture(autouse=True)
def _flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps what was written and is synced at once: that of the tests is written to by
    others, too, and to sync it can last longer than a test may."""
    monkeypatch.setattr(setup, "file_system", lambda _: "ext4")
    monkeypatch.setattr(durability, "sync_file_system", lambda _: None)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set while the disk takes what it is to write."""
    answers = threading.Event()
    answers.set()

    def sync(_: Path) -> None:
        if not answers.wait(WAIT_SECONDS):
            raise OSError("the test is over")

    monkeypatch.setattr(durability, "sync_file_system", sync)
    return answers


async def agreed_on(leaf: LeafHand) -> Checkpoint:
    """The checkpoint of the first answer whose cursor is on the hub's disk."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await leaf.announce(confirmed=3)
            if answer.synced and answer.checkpoint is not None:
                return answer.checkpoint
            await asyncio.sleep(0.3)


async def test_nothing_is_agreed_on_before_the_disk_of_the_hub_has_it(
    hub: HubHand, hand: LeafHand, disk: threading.Event
) -> None:
    async with hub.registrar(sync_interval=OFTEN):
        await hand.announce()
        disk.clear()
        await hub.holds(hand.domain, await hand.store(3))
        answer = await hand.announce(confirmed=3)
        assert (answer.cursor, answer.message_id) == (3, f"{hand.run}-normal-3")
        assert (answer.synced, answer.checkpoint) == (False, None)
        disk.set()
        assert await agreed_on(hand) == Checkpoint(3, f"{hand.run}-normal-3", AGGREGATE, 3)


async def test_an_epoch_begins_once_its_record_is_on_the_disk_that_refused_it(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()

    def sync(path: Path) -> None:
        if broken.is_set():
            raise OSError("input/output error")

    monkeypatch.setattr(durability, "sync_file_system", sync)
    async with hub.registrar(sync_interval=OFTEN):
        broken.set()
        assert "cannot be synced" in await hand.refused((await hand.announcement()).encode())
        broken.clear()
        await flowing(hub, hand, 3)


async def test_an_epoch_begins_though_each_sync_takes_longer_than_an_answer(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = threading.Semaphore(1)  # the registrar's own when it begins
    monkeypatch.setattr(durability, "sync_file_system", lambda _: syncs.acquire(timeout=WAIT_SECONDS))
    monkeypatch.setattr(announce_service, "_ANSWER_SECONDS", 0.5)

    async def is_taken_in() -> bool:
        return (await hand.say((await hand.announcement()).encode())).refused is None

    async with hub.registrar(sync_interval=SyncInterval(60.0)):
        assert not await is_taken_in()
        assert not await is_taken_in()
        syncs.release()
        await until(is_taken_in, "the one sync counts")
        syncs.release(100)


async def test_ingest_is_told_what_is_on_the_disk_once_all_is(
    hub: HubHand, hand: LeafHand, disk: threading.Event
) -> None:
    async with hub.registrar(sync_interval=SyncInterval(60.0)):
        info = await flowing(hub, hand, 3)
        disk.clear()
        asked = asyncio.create_task(hub.committed(Committed(AGGREGATE, info.created, 0)))
        assert not (await asyncio.wait([asked], timeout=0.3))[0], "the disk has not answered"
        disk.set()
        answer = await asked
        assert (answer["created"], answer["synced"], answer["purged"]) == (info.created, 3, 0)
        assert (await hub.aggregate()).messages == 3


async def test_each_epoch_is_another_one_after_the_hub_was_without_power(
    servers: ServerPair, hub: HubHand, hand: LeafHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store is put back to the moment of the last sync, while the leaf's server knows more to be
    acknowledged: the hub's server goes on behind the hole before the registrar is there."""
    async with hub.registrar(sync_interval=OFTEN):
        await flowing(hub, hand, 3)
        await until(lambda: hand.acknowledged(), "the leaf knows")
        agreed = await agreed_on(hand)
        assert (await hand.announce(agreed)).agreed is True
    await asyncio.to_thread(copy_running, servers.hub.config.store_dir, tmp_path / "on_disk")
    await hub.holds(hand.domain, await hand.store(4))
    await until(lambda: hand.acknowledged(), "the leaf knows")
    await servers.hub.restore(tmp_path / "on_disk")
    await ask_again(hub.nc, servers.leaf)
    await hub.holds(hand.domain, await hand.store(2))
    assert await hub.leaf_sequences(hand.domain, 4) == [8, 9], "and 4 to 7 are not there"
    monkeypatch.setattr(clock.machine, "boot", "another")
    async with hub.registrar(sync_interval=OFTEN):
        answer = await hand.announce(agreed)
        assert (answer.agreed, answer.cursor, answer.fallback) == (False, 0, agreed)
        assert agreed.leaf_seq == 3
        await hand.next_epoch(agreed.leaf_seq + 1)
        assert (await hand.announce(agreed)).agreed is True
        await hub.holds(hand.domain, 9)
        assert set(await hub.leaf_sequences(hand.domain, 1)) == set(range(1, 10))


@pytest.mark.parametrize("remembered", [True, False])
async def test_an_epoch_that_begins_behind_what_a_power_cut_took_is_another_one(
    servers: ServerPair,
    hub: HubHand,
    hand: LeafHand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remembered: bool,
) -> None:
    """The leaf has chosen the beginning by what the hub held, and its announcement comes when the hub's disk
    has lost that. Without its records the hub can't know through which page cache an epoch came."""
    async with hub.registrar(sync_interval=OFTEN):
        await flowing(hub, hand, 3)
        agreed = await agreed_on(hand)
        assert (await hand.announce(agreed)).agreed is True
    await asyncio.to_thread(copy_running, servers.hub.config.store_dir, tmp_path / "on_disk")
    await hub.holds(hand.domain, await hand.store(4))
    await hand.next_epoch(8)
    if not remembered:
        streams = tmp_path / "on_disk" / "jetstream" / ACCOUNT / "streams"
        await asyncio.to_thread(shutil.rmtree, streams / f"KV_{FLEET_BUCKET}")
    await servers.hub.restore(tmp_path / "on_disk")
    await ask_again(hub.nc, servers.leaf)
    await hub.holds(hand.domain, await hand.store(2))
    monkeypatch.setattr(clock.machine, "boot", "another")
    async with hub.registrar(sync_interval=OFTEN):
        answer = await hand.announce(agreed)
        assert (answer.agreed, answer.cursor, answer.fallback) == (False, 0, agreed)
        await hand.next_epoch(agreed.leaf_seq + 1)
        assert (await hand.announce(agreed)).agreed is True
        await hub.holds(hand.domain, 9)
        assert set(await hub.leaf_sequences(hand.domain, 1)) == set(range(1, 10))


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Three hub servers and a leaf."""
    async with open_cluster(tmp_path, monkeypatch, LoopbackProxy(0)) as one:
        yield one


@asynccontextmanager
async def storing(member: Member) -> AsyncIterator[None]:
    """Messages are stored on the leaf as long as the context lasts."""
    stopping = asyncio.Event()

    async def store() -> None:
        while not stopping.is_set():
            await member.store(5)
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(store())
        try:
            yield
        finally:
            stopping.set()


async def test_what_is_stored_while_another_server_takes_the_lead_is_there_once(cluster: Cluster) -> None:
    hub = await hub_of_all(cluster)
    async with hub.registrar(replicas=3):
        member = await Member.make(cluster.leaf, ("normal",))
        await member.announce()
        assert (await hub.aggregate()).config["num_replicas"] == 3
        await cluster.apart()
        async with storing(member):
            await until(partial(arrived, hub, member, 50), "it flows")
            await cluster.step_down()
            await until(partial(arrived, hub, member, member.hands["normal"].sent + 50), "it flows again")
        await once(hub, member)


async def hub_of_all(cluster: Cluster) -> HubHand:
    """The hub's side, whichever server of the cluster is there."""
    urls = [hub.url for hub in cluster.hubs.values()]
    node = cluster.servers.hub
    return HubHand(
        cluster.servers,
        await node.connect("registrar", servers=urls),
        await node.connect("jobs", servers=urls),
    )


async def arrived(hub: HubHand, member: Member, count: int) -> bool:
    """Whether the aggregate holds so many messages."""
    try:
        return (await hub.aggregate()).messages >= count
    except JetStreamError:
        return False


async def once(hub: HubHand, member: Member) -> None:
    """Return when the hub holds all that the leaf stored, and fail the test if it holds anything twice."""
    stored = member.hands["normal"].sent
    await until(partial(arrived, hub, member, stored), f"all {stored} are at the hub")
    found = (await ids_in(hub.js, aggregate(0)))["TEL_edge-1_normal"]
    assert len(found) == len(set(found)) == stored
