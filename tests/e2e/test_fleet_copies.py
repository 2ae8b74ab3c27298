"""The records of the fleet and the lease on three servers, of which one has lost a part of its copy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import FLEET_BUCKET
from agent.demo.loopback import LoopbackProxy
from agent.hub.lease import LEASE
from agent.hub.registrar.fleet_store import BUCKET, FleetStore
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.records import LeafRecord
from agent.jetstream import ApiError, JetStream
from agent.server import process
from hub_jobs.audit.in_transit import ask_hub
from hub_jobs.source.server import Server
from tests.harness.candidates import Candidate, candidate
from tests.harness.cluster import Cluster, open_cluster
from tests.harness.registrar import MACHINE
from tests.harness.servers import ask
from tests.harness.wait import until

DOMAINS = [f"edge-{number}" for number in range(3)]
LEAVES = [LeafRecord(domain, MACHINE, "run", {}, "before", {}) for domain in DOMAINS]
_PARTS, _PART_BYTES = 24, 500_000
"""More than a block of the bucket, so that the damaged one is not the last."""


@dataclass
class Copies:
    """Three servers of a hub, and the one whose copy of the bucket lacks records."""

    cluster: Cluster
    damaged: str
    holder: Candidate
    """The agent that led, beside another server, and stands still since."""
    nc: Client

    def store(self, problems: ActiveProblems) -> FleetStore:
        """The records, as another agent reads them."""
        return FleetStore(self.nc, JetStream(self.nc), len(self.cluster.hubs), problems)


async def leader(cluster: Cluster) -> str:
    """The server that leads the bucket, "" while none does or not all copies are current."""
    found = await cluster.placement(BUCKET)
    current = [replica.get("current") for replica in found.get("replicas") or []]
    return str(found.get("leader", "")) if current == [True, True] else ""


async def leads(cluster: Cluster, name: str) -> bool:
    """Whether a server leads the bucket, which is asked for where another one does."""
    if (now := await leader(cluster)) in ("", name):
        return now == name
    client = await cluster.hubs[now].connect("registrar")
    with suppress(NatsError):
        await ask(client, f"$JS.API.STREAM.LEADER.STEPDOWN.{BUCKET}", {"placement": {"preferred": name}})
    await client.close()
    return False


@pytest_asyncio.fixture
async def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Copies]:
    """The first block of the bucket, with the records of leaves, is damaged at one server, which leads it."""
    # The harness adds the cluster to a configuration of one server, which would not take the store again.
    monkeypatch.setattr(process, "store_problem", lambda _: None)
    async with open_cluster(tmp_path, monkeypatch, LoopbackProxy(0)) as cluster, AsyncExitStack() as stack:
        nc = await next(iter(cluster.hubs.values())).connect("registrar")
        store = FleetStore(nc, JetStream(nc), len(cluster.hubs), ActiveProblems())

        async def made() -> bool:
            try:
                await store.ensure()
            except ApiError:  # a server that has just joined is not placed on yet
                return False
            return True

        await until(made, "the bucket is made")
        holder = await stack.enter_async_context(candidate(cluster.servers, "a", replicas=3))
        await holder.leads()
        await holder.stop()
        await store.save_all(LEAVES)
        for part in range(_PARTS):
            await store.save_audit(part, random.randbytes(_PART_BYTES))

        async def whole() -> bool:
            return bool(await leader(cluster))

        await until(whole, "three servers are current")
        damaged = list(cluster.hubs)[-1]
        hub = cluster.hubs[damaged]
        await hub.kill()
        blocks = hub.config.store_dir.glob(f"**/streams/{BUCKET}/msgs/*.blk")
        first, *others = sorted(blocks, key=lambda path: int(path.stem))
        assert others
        with first.open("r+b") as file:
            file.write(b"\xff" * 64)
        first.with_name("index.db").unlink(missing_ok=True)
        await hub.start()
        await until(partial(leads, cluster, damaged), "the damaged copy leads")
        yield Copies(cluster, damaged, holder, await hub.connect("registrar"))


async def test_a_registrar_knows_leaves_that_the_leader_of_the_bucket_has_lost(copies: Copies) -> None:
    problems = ActiveProblems()
    store = copies.store(problems)
    assert sorted(await store.load(DOMAINS)) == DOMAINS
    assert f"{copies.damaged} lacks 3 records" in str(problems.of(f"copies of {BUCKET}"))
    await store.save_changed(LEAVES[0])
    message = await JetStream(copies.nc).get_message(BUCKET, last_by_subject=f"$KV.{FLEET_BUCKET}.edge-0")
    assert message is not None, "it is stored again, in all copies"


async def test_that_a_copy_lacks_records_is_over_once_each_of_them_is_stored_again(copies: Copies) -> None:
    problems = ActiveProblems()
    store = copies.store(problems)
    await store.load(DOMAINS)
    for leaf in LEAVES[:-1]:
        await store.save_changed(leaf)
    assert problems.of(f"copies of {BUCKET}") is not None, "one is not stored yet"
    await store.load(DOMAINS)
    assert problems.of(f"copies of {BUCKET}") is not None

    await store.save_changed(LEAVES[-1])

    assert problems.of(f"copies of {BUCKET}") is None


async def test_a_record_that_a_copy_lacks_is_stored_again_also_where_another_server_leads_by_then(
    copies: Copies,
) -> None:
    store = copies.store(ActiveProblems())
    await store.load(DOMAINS)
    whole = next(name for name in copies.cluster.hubs if name != copies.damaged)
    await until(partial(leads, copies.cluster, whole), "another copy leads")
    before = (await JetStream(copies.nc).stream_info(BUCKET)).last
    await store.load(DOMAINS)
    for leaf in LEAVES:
        await store.save_changed(leaf)
    assert (await JetStream(copies.nc).stream_info(BUCKET)).last == before + len(LEAVES)


async def test_an_audit_knows_what_a_leaf_announced_though_one_copy_lacks_it(copies: Copies) -> None:
    hub = copies.cluster.hubs[copies.damaged]
    server = Server(hub.url, seed_file=str(hub.keys["jobs"]))
    for _ in range(10):
        found = await asyncio.to_thread(ask_hub, server, [], DOMAINS)
        assert (sorted(found.leaves), found.faults) == (DOMAINS, [])


async def test_a_new_holder_follows_the_one_whose_lease_the_leader_of_the_bucket_has_lost(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = copies.holder.lead
    monkeypatch.setattr(first._election, "leads", lambda now: True)
    assert first.holds(), "a clock that stands still"
    assert await JetStream(copies.nc).get_message(BUCKET, last_by_subject=LEASE) is None

    async with candidate(copies.cluster.servers, "b", replicas=3) as second:
        await second.leads()

        await until(lambda: not first.holds(), "its connections are cut")
        lease = second.lead._election.lease
        assert lease is not None
        assert lease.term == 2
        monkeypatch.setattr(first, "holds", lambda: True)
        with pytest.raises(ApiError, match="wrong last sequence"):
            await copies.holder.js.publish(f"$KV.{FLEET_BUCKET}.edge-0", b"stale")
        await second.js.publish(f"$KV.{FLEET_BUCKET}.edge-0", b"{}")
