"""An aggregate on three servers, of which those that matter are killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from agent.demo.proxy import Proxy
from tests.e2e.test_registrar_cluster import arrived, hub_of_all, once, storing
from tests.faults.report import Case
from tests.harness.cluster import Cluster, open_cluster
from tests.harness.fleet import Member
from tests.harness.registrar import HubHand
from tests.harness.wait import until

_MORE = 50


async def test_a_killed_leader_and_a_killed_server_of_the_leaf_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    case.expected = "the others take over; every message is at the hub once"
    async with open_cluster(tmp_path, monkeypatch, Proxy(0)) as cluster:
        hub = await hub_of_all(cluster)
        async with hub.registrar(replicas=3):
            member = await Member.make(cluster.leaf, ("normal",))
            await member.announce()
            async with storing(member):
                await cluster.apart()
                await killed(cluster, hub, member, case, await cluster.leader())
                await cluster.apart()
                await killed(cluster, hub, member, case, await cluster.leaf_at())
            await once(hub, member)
            case.sent = case.acknowledged = member.shelves["normal"].stored
            case.lost = case.duplicates = 0


async def killed(cluster: Cluster, hub: HubHand, member: Member, case: Case, name: str) -> None:
    """Kill a server while messages flow, and start it again once they flow without it."""
    node, what = cluster.hubs[name], "leader" if name == await cluster.leader() else "server of the leaf"
    case.begins()
    await node.kill()
    wanted = member.shelves["normal"].stored + _MORE
    await until(partial(arrived, hub, member, wanted), f"it flows without {name}", seconds=40)
    case.saw(f"it flows again without the {what}")
    await node.start()

    async def whole() -> bool:
        return await cluster.leader() != "" and await cluster.leaf_at() != ""

    await until(whole, f"{name} is back")
