"""A fleet on one hub: several aggregates, what a domain may send in an hour, an agent that ends while its
server goes on, and two machines with one domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog
from nats.errors import Error as NatsError
from prometheus_client.exposition import generate_latest
from structlog.testing import capture_logs

from agent.config import Size
from agent.contract import (
    H_MESSAGE_ID,
    Answer,
    Committed,
    aggregate,
    announce_subject,
    link_consumer,
    parse_answer,
)
from agent.demo.loopback import LoopbackProxy
from agent.hub.registrar import fleet_watch
from agent.jetstream import JetStreamError
from hub_jobs.audit.in_transit import ask_hub, in_transit_of
from hub_jobs.source.server import Server
from hub_jobs.tables.spaces import SeenNumbers
from tests.harness.fleet import Member, ids_in
from tests.harness.registrar import MACHINE, HubHand, LeafHand, hub_of
from tests.harness.servers import Leaf, ServerPair, make_leaf, open_server_pair
from tests.harness.streams import AGGREGATE, make_leaf_stream, stored_messages
from tests.harness.wait import WAIT_SECONDS, until

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


async def test_an_audit_names_what_the_hub_lacks_of_a_class_that_is_announced_no_more(
    tmp_path: Path,
) -> None:
    async with open_server_pair(tmp_path, "edge-1", classes=CLASSES) as servers:
        hub = await hub_of(servers)
        member = await Member.make(servers.leaf, CLASSES)
        bulk = member.hands["bulk"]
        server = Server(servers.hub.url, seed_file=str(servers.hub.keys["jobs"]))
        async with hub.registrar():
            await member.announce()
            await bulk.js.pause_consumer(bulk.stream, link_consumer(bulk.epoch), 300)
            await member.store(3)
            await member.announce()
            for _ in range(2):
                await Member({"normal": member.hands["normal"]}).announce()
            found = await asyncio.to_thread(ask_hub, server, [], ["edge-1"])
        (transit,) = [way for way in in_transit_of(found.leaves, SeenNumbers(), {}) if way.cls == "bulk"]
        assert (transit.removed, transit.ranges) == (True, [(1, 3)])


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
    servers: ServerPair, hub: HubHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "_TRAFFIC_SECONDS", 0.2)
    member = await Member.make(servers.leaf, ("normal",))
    async with hub.registrar(bytes_per_hour=Size(200_000)) as registrar:
        await member.announce()
        await member.store(3, size=100_000)

        def said() -> bool:
            return "bytes_per_hour allows 200000" in registrar.status()["leaves"]["edge-1"]["state"]

        await until(said, "the domain is over its limit")

        async def out() -> bool:
            return not (await hub.aggregate()).sources

        await until(out, "its source is taken out")
        assert registrar.status()["leaves"]["edge-1"]["words"] == ["capped"]
        await member.store(2)
        answer = (await member.announce()).classes["normal"]
        assert (answer.state, answer.certain) == ("capped", True)
        assert answer.cursor <= 3, "two messages are over the limit: the third may be left on the leaf"
        assert registrar._quota is not None
        registrar._quota._hour = 3.0
        await until(partial(all_held, member), "all of it is at the hub")
        found = (await ids_in(hub.js, aggregate(0)))["TEL_edge-1_normal"]
        assert len(found) == len(set(found)) == 5


async def test_a_link_that_ends_before_it_is_looked_at_counts_with_all_that_it_carried(
    servers: ServerPair, hub: HubHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "_TRAFFIC_SECONDS", 3600.0)
    member = await Member.make(servers.leaf, ("normal",))
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


async def test_a_leaf_whose_agent_missed_three_announcements_is_silent_until_it_is_heard(
    servers: ServerPair, hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar() as registrar:

        def word() -> str:
            return str(registrar.status()["leaves"]["edge-1"]["word"])

        def counted() -> float:
            return hub.metrics.registry.get_sample_value("petiole_fleet_silent_leaves") or 0.0

        def shown(state: str) -> bool:
            return hub.counted("petiole_leaf_state", domain="edge-1", state=state) == 1

        await hand.announce()
        await hub.holds("edge-1", await hand.store(1))
        await until(lambda: word() == "flowing", "it flows")
        await until(lambda: shown("flowing"), "its state is a metric")
        assert hub.counted("petiole_leaf_linked", domain="edge-1") == 1
        hand.every = 0.5
        await hand.announce()
        await until(lambda: word() == "silent", "its server is linked, and nobody announces it")
        said = registrar.status()["leaves"]["edge-1"]["state"]
        assert said.startswith("its server is linked, and its agent was last heard")
        await until(lambda: counted() == 1, "it is counted")
        assert shown("silent")
        assert not shown("flowing")
        hand.every = 60.0
        await hand.announce()
        assert word() == "flowing"
        await until(lambda: counted() == 0, "it is not counted any more")
        await servers.leaf.stop()
        await until(lambda: word() == "away", "without its server it is away, not silent")
        await until(lambda: shown("away"), "and so is its metric")
        assert hub.counted("petiole_leaf_linked", domain="edge-1") == 0


async def test_an_agent_that_does_not_say_how_often_it_announces_itself_is_given_three_minutes(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar() as registrar:
        await hand.announce()
        assert registrar._fleet.leaves["edge-1"].silent_after == 180.0


async def test_a_leaf_whose_name_is_not_chosen_has_no_metrics_of_its_own_and_is_counted(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar(metrics=["edge-2*"]) as registrar:
        await hand.announce()
        assert "edge-1" in registrar._fleet.leaves
        assert 'domain="edge-1"' not in generate_latest(hub.metrics.registry).decode()
        assert hub.counted("petiole_fleet_unshown_leaves") >= 1


@asynccontextmanager
async def another(servers: ServerPair, directory: Path, machine: str) -> AsyncIterator[Leaf]:
    """A second server with the domain and the key of the first leaf."""
    first, proxy = servers.leaf, LoopbackProxy(servers.hub.leaf_port)
    await proxy.start()
    leaf = make_leaf(
        directory, first.domain, first.config.classes, proxy, first.config.link_key_file, machine
    )
    await leaf.start()
    try:
        yield leaf
    finally:
        await leaf.close()
        await proxy.stop()


async def announced(leaf: LeafHand, machine: str = MACHINE) -> Answer | None:
    """The answer to an announcement over a link that may go down at any moment."""
    data = replace(await leaf.announcement(), machine=machine).encode()
    try:
        return parse_answer((await leaf.nc.request(announce_subject(leaf.domain), data, timeout=60)).data)
    except NatsError:
        return None


async def ids_at(hub: HubHand, run: str) -> set[str]:
    """The ids of a run's messages that the hub holds."""
    ids = {message.headers[H_MESSAGE_ID] for message in await stored_messages(hub.js, AGGREGATE)}
    return {ident for ident in ids if ident.startswith(run)}


async def test_a_second_machine_is_refused_while_the_first_flows_on_and_both_are_told(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    first = await LeafHand.make(servers.leaf)
    with capture_logs() as logs:
        async with hub.registrar() as registrar, another(servers, tmp_path / "other", "other") as leaf:
            await first.announce()
            await leaf.wait_linked()
            second = await LeafHand.make(leaf)
            await second.store(5)
            for _ in range(2):
                answer = await announced(second, "other")
                assert answer is not None
                assert "belongs to machine test" in (answer.refused or "")
            assert "belongs to machine test" in registrar.status()["leaves"][first.domain]["state"]
            assert (await first.announce()).state == "contested"
            await hub.holds(first.domain, await first.store(5))
            assert await ids_at(hub, second.run) == set()
            assert len(await ids_at(hub, first.run)) == 5
    assert len([line for line in logs if line.get("about") == "rival of edge-1"]) == 1


async def test_a_copied_disk_is_found_by_its_run_and_the_first_machine_goes_on_with_a_new_epoch(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    first = await LeafHand.make(servers.leaf)
    async with hub.registrar() as registrar:
        await first.announce()
        await hub.holds(first.domain, await first.store(5))
        async with another(servers, tmp_path / "copy", "test") as leaf:
            copy = LeafHand(leaf, await leaf.connect("agent"))
            copy.epoch = first.epoch
            await make_leaf_stream(copy.nc, copy.domain, copy.epoch)
            answers: list[Answer | None] = []
            async with asyncio.timeout(WAIT_SECONDS):
                while not told(answers):
                    answers += [await announced(copy), await announced(first)]
                    await asyncio.sleep(0.5)
            assert "two machines that take turns" in registrar.status()["leaves"][first.domain]["state"]
            await first.next_epoch(start=1)

            async def taken_in() -> bool:
                answer = await announced(first)
                return answer is not None and not answer.refused and answer.classes["normal"].agreed is None

            await until(taken_in, "the new epoch is taken in")
            await first.store(5)
        await until(lambda: all_there(hub, first), "all of the first machine is at the hub")
        await until(taken_in, "the first machine is answered")


def told(answers: list[Answer | None]) -> bool:
    """Whether the copy was refused for what it is and the first machine knows of it."""
    said = [one for one in answers if one is not None]
    refused = any("take turns" in (one.refused or "") for one in said)
    normal = [one.classes["normal"] for one in said if one.classes]
    return refused and any(one.state == "contested" and one.agreed is False for one in normal)


async def all_there(hub: HubHand, leaf: LeafHand) -> bool:
    """Whether the hub holds every message of a leaf."""
    try:
        return len(await ids_at(hub, leaf.run)) == leaf.sent
    except JetStreamError:
        return False
