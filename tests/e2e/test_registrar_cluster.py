"""An aggregate on three servers of a cluster, the leaf linked to one that does not lead it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from agent.contract import aggregate
from agent.demo.proxy import Proxy
from agent.jetstream import JetStreamError
from tests.harness.cluster import Cluster, open_cluster
from tests.harness.fleet import Member, ids_in
from tests.harness.registrar import HubHand
from tests.harness.wait import until


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Three hub servers and a leaf."""
    async with open_cluster(tmp_path, monkeypatch, Proxy(0)) as one:
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
