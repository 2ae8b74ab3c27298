"""What a fleet costs while nothing happens: requests to the hub's server that do not grow with the leaves;
and what has to be noticed all the same."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent.base import wait
from agent.base.wait import loop_time
from agent.config import LeafMember
from agent.contract import (
    COMMANDS,
    FLEET_BUCKET,
    HOME,
    Announce,
    Answer,
    CommandsWanted,
    Repeat,
    command_consumer,
    new_epoch,
    new_exchange,
)
from agent.hub.registrar import announce_service, upkeep
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.problems import ActiveProblems
from agent.hub.registrar.records import LeafRecord, encode
from agent.jetstream import JetStream
from agent.leaf.link.announcer import HubExchange
from tests.harness.registrar import MACHINE, HubHand, LeafHand, flowing, hub_of
from tests.harness.servers import ServerPair
from tests.harness.wait import until

BUCKET = f"KV_{FLEET_BUCKET}"


@contextmanager
def requests_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What is asked of JetStream by this process as long as the context lasts, the looks at the hub's streams
    apart, which are for all leaves."""
    counted: Counter[str] = Counter()
    asked = JetStream._request

    async def ask(self: JetStream, subject: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        counted[subject] += 1
        return await asked(self, subject, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(JetStream, "_request", ask)
        yield counted
    for look in ("TELEMETRY_0", COMMANDS, BUCKET):
        del counted[f"$JS.API.STREAM.INFO.{look}"]


class Repeating:
    """A leaf with commands that says what it said."""

    def __init__(self, leaf: LeafHand) -> None:
        self._exchange = HubExchange(leaf.nc, leaf.domain, lambda _: None)
        self._commands = CommandsWanted(new_epoch(), 0)
        self.leaf, self.epoch = leaf, self._commands.epoch
        self.announce: Announce

    async def settle(self) -> None:
        """Announce until both sides say the same."""
        self.announce = replace(
            await self.leaf.announcement(confirmed=self.leaf.sent), commands=self._commands
        )
        said: list[Answer] = []

        async def same() -> bool:
            await asyncio.sleep(1.1)  # one announcement a second is taken, after ten
            said.append(await self.say())
            return said[-2:-1] == said[-1:]

        await until(same, "both sides say the same")

    async def say(self) -> Answer:
        """The answer to the same announcement as before."""
        answer = await self._exchange.ask(self.announce)
        assert isinstance(answer, Answer), answer
        assert answer.refused is None, answer.refused
        return answer


async def settled(servers: ServerPair, hub: HubHand) -> Repeating:
    """A leaf with a message at the hub that has nothing new to say."""
    leaf = Repeating(await LeafHand.make(servers.leaf))
    await leaf.settle()
    await hub.holds(leaf.leaf.domain, await leaf.leaf.store())
    await leaf.settle()
    return leaf


async def test_announcements_of_an_unchanged_leaf_cost_no_request_and_no_record(
    servers: ServerPair, hub: HubHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar() as registrar:
        leaf = await settled(servers, hub)
        written = (await hub.js.stream_info(BUCKET)).last
        heard = registrar.status()["leaves"]["edge-1"]["announced_at"]
        with requests_of(monkeypatch) as counted:
            answers = [await leaf.say() for _ in range(5)]
        assert not counted
        assert answers == [answers[0]] * 5
        assert hub.counted("petiole_announcements_total", outcome="taken_in") >= 8
        assert (await hub.js.stream_info(BUCKET)).last == written

        async def told() -> bool:
            await leaf.say()
            await asyncio.sleep(1.1)
            return bool(registrar.status()["leaves"]["edge-1"]["announced_at"] > heard)

        await until(told, "the fleet's status says when the leaf was heard")


async def test_an_unchanged_leaf_is_told_of_a_command_and_the_others_are_not_asked_about(
    servers: ServerPair, hub: HubHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar():
        leaf = await settled(servers, hub)
        await hub.js.publish("cmd.edge-2.tool.ping", b"{}")
        await asyncio.sleep(1.5)  # a look a second
        with requests_of(monkeypatch) as counted:
            held = (await leaf.say()).commands
        assert not counted
        assert held is not None
        assert held.last == 0
        mine = await hub.js.publish("cmd.edge-1.tool.ping", b"{}")

        async def told() -> bool:
            await asyncio.sleep(1.1)
            held = (await leaf.say()).commands
            return held is not None and (held.last, held.behind) == (mine, 1)

        await until(told, "the leaf is told of its command")


async def test_a_leaf_whose_exchange_is_not_known_is_told_so_however_many_announcements_wait(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar():
        await hand.announce()
        monkeypatch.setattr(announce_service, "_WAITING", 0)
        assert "announce it in full" in await hand.refused(Repeat(new_exchange()).encode())
        assert "announce again" in await hand.refused((await hand.announcement()).encode())


async def test_the_first_announcement_after_a_start_of_the_registrar_does_not_ask_for_the_leafs_consumer(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await hub_of(servers)
    async with hub.registrar():
        leaf = await settled(servers, hub)
    async with hub.registrar() as registrar:
        await registrar._commands._streams[HOME].look()
        with requests_of(monkeypatch) as counted:
            held = (await leaf.say()).commands
        assert not counted
        assert held is not None
        assert held.behind == 0


async def test_a_command_consumer_that_is_deleted_is_made_again_for_an_unchanged_leaf(
    servers: ServerPair, hub: HubHand
) -> None:
    async with hub.registrar():
        leaf = await settled(servers, hub)
        await hub.js.delete_consumer(COMMANDS, command_consumer("edge-1"))

        async def back() -> bool:
            await asyncio.sleep(1.1)
            await leaf.say()
            return await hub.js.find_consumer(COMMANDS, command_consumer("edge-1")) is not None

        await until(back, "the consumer is there")


async def test_records_that_are_gone_from_the_bucket_are_stored_again(
    servers: ServerPair, hub: HubHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_COMPARE_SECONDS", 0.5)
    async with hub.registrar():
        leaf = await settled(servers, hub)
        await hub.js.purge(BUCKET, (await hub.js.stream_info(BUCKET)).last)

        async def stored() -> bool:
            await asyncio.sleep(1.1)
            await leaf.say()
            found = await hub.js.get_message(BUCKET, last_by_subject=f"$KV.{FLEET_BUCKET}.edge-1")
            return found is not None

        await until(stored, "the record of the leaf is there")


async def test_a_class_rests_on_when_the_registrar_is_started_again_and_not_after_a_start_of_the_server(
    servers: ServerPair, hub: HubHand, hand: LeafHand
) -> None:

    async def say() -> str:
        said = await hand.announcement(confirmed=1)
        idle = replace(said, classes={"normal": replace(said.classes["normal"], idle=True)})
        answer = await hand.say(idle.encode())
        return answer.refused or answer.classes["normal"].state

    async def rested() -> bool:
        await asyncio.sleep(0.5)
        return await say() == "resting"

    async def sources() -> list[Any]:
        return (await hub.aggregate()).config.get("sources") or []

    async with hub.registrar():
        await flowing(hub, hand)
        await until(rested, "the class rests")
    async with hub.registrar() as registrar:
        await until(lambda: registrar._fleet.resting == {"TEL_edge-1_normal"}, "the class rests")
        await until(rested, "the registrar says that the class rests")
        assert not await sources()
        began = time.monotonic()
        await servers.hub.kill()
        await servers.hub.start()
        await until(lambda: not registrar._fleet.resting or time.monotonic() - began > 60, "it is woken")

        async def back() -> bool:
            return bool(await sources())

        await until(back, "the source is there again")


async def test_the_records_of_many_leaves_are_read_in_one_request(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc = await servers.hub.connect("registrar")
    store = FleetStore(nc, JetStream(nc), 1, ActiveProblems())
    await store.ensure()
    leaves = [LeafRecord(f"edge-{n}", MACHINE, "run", {}, f"{n}", {}) for n in range(150)]
    await store.save_all(leaves)
    with requests_of(monkeypatch) as counted:
        found = await store.load([*(leaf.domain for leaf in leaves), "unknown"])
    assert found == {leaf.domain: leaf for leaf in leaves}
    assert not counted


@pytest.mark.parametrize("count", [1_000, 5_000])
async def test_a_registrar_begins_with_a_few_requests_however_many_leaves_it_knows(
    hub: HubHand, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar():
        pass  # it makes the streams
    members = [LeafMember(f"edge-{n}", f"U{n}", []) for n in range(count)]
    for member in members:
        known = LeafRecord(member.domain, MACHINE, "run", {}, "before", {})
        await hub.nc.publish(f"$KV.{FLEET_BUCKET}.{member.domain}", encode(known))
    await hub.nc.flush(timeout=60)

    async def stored() -> bool:
        return (await hub.js.stream_info(BUCKET)).messages >= count

    await until(stored, "the records are stored")
    with requests_of(monkeypatch) as counted:
        async with hub.registrar(members=members) as registrar:
            await until(lambda: len(registrar._fleet.leaves) == count, "all leaves are known")
            assert sum(counted.values()) < 20, counted


async def test_the_registrar_goes_on_where_records_are_read_back_without_leaves_that_fell_silent(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the hub's server with an older store, at any moment of the look at the fleet."""
    monkeypatch.setattr(wait, "SPAN", 0.0)  # the loop has its turn after each leaf
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    records = {
        f"old-{number}": LeafRecord(f"old-{number}", "m", "run", {}, "then", {}) for number in range(3)
    }
    async with hub.registrar() as registrar:
        fleet, looks = registrar._fleet, registrar._upkeep
        for turns in range(10):
            await fleet.begin(records, {}, {}, loop_time() - 1_000.0)
            fleet.resting.add("TEL_old-0_normal")
            looking = asyncio.create_task(looks._look_for_silent())
            for _ in range(turns):
                await asyncio.sleep(0)
            await fleet.begin({}, {}, {}, loop_time())
            await looking
            await looks._remember(records)
        await flowing(hub, leaf)
