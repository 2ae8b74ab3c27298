"""A link that is paid for by the byte: what is idle has no source and no consumer, so that no heartbeat
crosses the link, and nothing is lost or doubled when it is not idle any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import LinkConfig
from agent.contract import COMMANDS, Committed, command_consumer, direct_subject
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.leaf.link import controller
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.registrar import LeafHand, flowing, hub_of
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


@pytest.fixture(autouse=True)
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkConfig, "rest_seconds", 0.5)
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.0)
    monkeypatch.setattr(controller, "_LOOK_SECONDS", 0.5)


@asynccontextmanager
async def idle_pair(servers: ServerPair, tmp_path: Path) -> AsyncIterator[LinkedPair]:
    """A pair whose link rests."""
    async with open_linked_pair(servers, tmp_path / "state") as pair:
        await pair.send(3)
        await rests(pair)
        yield pair


async def rests(pair: LinkedPair) -> None:
    """Return when the hub has no source of the leaf."""

    async def reached() -> bool:
        return not (await pair.hub.aggregate()).config.get("sources")

    await until(reached, "the source is gone")
    leaves = pair.registrar.status
    await until(lambda: leaves()["leaves"]["edge-1"]["word"] == "flowing", "a leaf at rest counts as flowing")


async def publish(pair: LinkedPair, value: str) -> int:
    """What a program publishes beside the agent; its sequence."""
    return await pair.probe.js.publish(direct_subject("edge-1", "normal", "pump", "bar"), value.encode())


async def test_readings_after_a_rest_arrive_once_and_the_link_rests_again(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        for count in (1, 20):
            await pair.send(count)
            await pair.exactly_once()
            await rests(pair)
        assert pair.epochs("hub_lost") == 0
        assert pair.agent.leaf.link.row()["attention"] is False


async def test_readings_after_a_rest_arrive_once_where_the_hub_was_purged_meanwhile(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        await pair.send(10)
        await pair.exactly_once()
        await rests(pair)
        info = await pair.hub.aggregate()
        answer = await pair.hub.committed(Committed(AGGREGATE, info.created, info.last))
        assert answer["purged"]
        kept = await pair.arrived()
        await pair.send(5)

        async def reached() -> bool:
            return await pair.arrived() == kept + pair.sent[-5:]

        await until(reached, "what is new arrives once")


async def test_what_a_program_publishes_during_a_rest_arrives_without_an_agent(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        await pair.hub.holds("edge-1", await publish(pair, "1"))
        await rests(pair)
        await pair.agent.crash()
        await pair.hub.holds("edge-1", await publish(pair, "2"))


async def test_a_reading_that_came_while_its_source_went_is_not_said_to_be_lacking(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        await flowing(hub, leaf)

        async def rested() -> bool:
            said = await leaf.announcement(confirmed=1)
            idle = replace(said, classes={"normal": replace(said.classes["normal"], idle=True)})
            await asyncio.sleep(0.5)  # one announcement a second is taken, after ten
            return (await leaf.say(idle.encode())).classes["normal"].state == "resting"

        await until(rested, "the class rests")
        monkeypatch.setattr(AggregateController, "want", lambda *_: None)
        await leaf.store()
        said = await leaf.announcement(confirmed=1)
        acked = replace(said, classes={"normal": replace(said.classes["normal"], acked=2)})
        answer = (await leaf.say(acked.encode())).classes["normal"]
        assert (answer.cursor, answer.certain, answer.agreed) == (1, False, None)


async def test_a_leaf_that_rests_waits_for_a_registrar_that_is_down(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        await pair.stop_registrar()
        await pair.send(5)
        await pair.start_registrar()
        await pair.exactly_once()


async def test_a_leaf_that_rests_goes_on_after_the_server_of_either_side_was_killed(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        for server in (servers.hub, servers.leaf):
            await server.kill()
            await server.start()
            await until(lambda: pair.agent.leaf.link.controller.answered, "the hub answers")
            await pair.send(5)
            await pair.exactly_once()
            await rests(pair)


async def test_commands_reach_a_leaf_whose_consumer_rests(servers: ServerPair, tmp_path: Path) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        hub, leaf = pair.hub.js, pair.probe.js

        async def dropped() -> bool:
            return await hub.find_consumer(COMMANDS, command_consumer("edge-1")) is None

        for count in range(1, 4):

            async def arrived(count: int = count) -> bool:
                return (await leaf.stream_info(COMMANDS)).messages == count

            await until(dropped, "the hub's consumer is gone")
            await hub.publish("cmd.edge-1.tool.ping", b"{}")
            await until(arrived, "the command is here", 60.0)
