"""A fleet on one hub: several aggregates, and what a domain may send in an hour."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
import structlog

from agent.config import Size
from agent.contract import Answer, Committed, aggregate
from agent.hub.registrar import fleet_watch, service
from agent.hub.registrar.quota import Quota
from tests.harness.fleet import Member, ids_in
from tests.harness.registrar import LeafHand, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import until

CLASSES = ("normal", "bulk")
BOTH = (aggregate(0), aggregate(1))


async def test_a_fleet_of_two_aggregates_keeps_each_leaf_together_and_where_it_was(tmp_path: Path) -> None:
    async with open_server_pair(tmp_path, "edge-1", "edge-2", classes=CLASSES, aggregates=BOTH) as servers:
        hub = await hub_of(servers)
        members = [await Member.make(leaf, CLASSES) for leaf in servers.leaves.values()]
        async with hub.registrar(max_sources=len(CLASSES)) as registrar:
            given = {one.domain: streams_of(await one.announce()) for one in members}
            assert sorted(map(sorted, given.values())) == [[aggregate(0)], [aggregate(1)]]
            for one in members:
                await one.store(3)
            for one in members:
                await until(partial(all_held, one), f"all of {one.domain} is at the hub")
            assert sum(row["sources"] for row in registrar.status()["aggregates"].values()) == 4
            (stream,) = given["edge-2"]
            info = await hub.js.stream_info(stream)
            answer = await hub.committed(Committed(stream, info.created, info.last), stream)
            assert answer["purged"] == info.last - 5
        async with hub.registrar(max_sources=len(CLASSES)):
            for one in members:
                assert streams_of(await one.announce()) == given[one.domain]
        (stream,) = given["edge-1"]
        assert set(await ids_in(hub.js, stream)) == {"TEL_edge-1_normal", "TEL_edge-1_bulk"}


async def test_many_new_epochs_at_once_are_few_changes_of_the_aggregate(tmp_path: Path) -> None:
    classes = [f"c{number}" for number in range(10)]
    async with open_server_pair(tmp_path, "edge-1", "edge-2", classes=tuple(classes)) as servers:
        hub = await hub_of(servers)
        members = [await Member.make(leaf, classes) for leaf in servers.leaves.values()]
        with structlog.testing.capture_logs() as logs:
            async with hub.registrar():
                await asyncio.gather(*(one.announce() for one in members))
                await asyncio.gather(*(one.begin_anew() for one in members))
                await asyncio.gather(*(one.announce() for one in members))
                await asyncio.gather(*(one.store(2) for one in members))
                for one in members:
                    await until(partial(all_held, one), f"all of {one.domain} is at the hub")
        changes = [one for one in logs if one["event"] == "sources changed" and not one["added_again"]]
        assert 2 <= len(changes) <= 2 * len(members)
        found = await ids_in(hub.js, aggregate(0))
        assert all(len(names) == len(set(names)) == 2 for names in found.values())
        assert len(found) == len(members) * len(classes)


async def test_a_leaf_of_an_aggregate_that_is_not_provided_any_more_is_told_the_remedy(
    tmp_path: Path,
) -> None:
    async with open_server_pair(tmp_path, "edge-1", "edge-2", aggregates=BOTH) as servers:
        hub = await hub_of(servers)
        hands = [await LeafHand.make(leaf) for leaf in servers.leaves.values()]
        async with hub.registrar(max_sources=1):
            streams = [(await one.announce()).stream for one in hands]
        outside = hands[streams.index(aggregate(1))]
        async with hub.registrar():
            words = await outside.refused((await outside.announcement()).encode())
            assert "is kept in TELEMETRY_1" in words
            assert "raise [registrar] aggregates" in words
        async with hub.registrar(aggregates=2):
            assert (await outside.announce()).stream == aggregate(1)


async def test_a_domain_that_sends_too_much_waits_on_its_leaf_and_goes_on_by_itself(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "Quota", partial(Quota, hour=3.0))
    monkeypatch.setattr(fleet_watch, "_TRAFFIC_SECONDS", 0.2)
    hub, member = await hub_of(servers), await Member.make(servers.leaf, ("normal",))
    async with hub.registrar(bytes_per_hour=Size(200_000)) as registrar:
        await member.announce()
        await member.store(3, size=100_000)

        def said() -> bool:
            return "bytes_per_hour allows 200000" in registrar.status()["leaves"]["edge-1"]["state"]

        await until(said, "the domain is over its limit")

        async def out() -> bool:
            return not (await hub.aggregate()).sources

        await until(out, "its source is taken out")
        await member.store(2)
        answer = (await member.announce()).classes["normal"]
        assert (answer.state, answer.cursor, answer.certain) == ("capped", 3, True)
        await hub.holds("edge-1", 5)
        assert (await member.announce()).classes["normal"].cursor == 5
        found = (await ids_in(hub.js, aggregate(0)))["TEL_edge-1_normal"]
        assert len(set(found)) == 5


async def test_a_link_that_ends_before_it_is_looked_at_counts_with_all_that_it_carried(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "_TRAFFIC_SECONDS", 3600.0)
    hub, member = await hub_of(servers), await Member.make(servers.leaf, ("normal",))
    async with hub.registrar(bytes_per_hour=Size(200_000)) as registrar:
        await member.announce()
        await member.store(3, size=100_000)
        await hub.holds("edge-1", 3)

        def said() -> bool:
            return "bytes_per_hour allows 200000" in registrar.status()["leaves"]["edge-1"]["state"]

        assert not said(), "no look has counted it"
        servers.leaf.proxy.cut()
        await until(said, "the domain is over its limit")


def streams_of(answer: Answer) -> list[str]:
    """The aggregates of an answer's classes."""
    return sorted({one.stream for one in answer.classes.values()})


async def all_held(member: Member) -> bool:
    """Whether the hub tells a leaf that it holds all of it."""
    answer = await member.announce()
    return all(answer.classes[cls].cursor == hand.sent for cls, hand in member.hands.items())
