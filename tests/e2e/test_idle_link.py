"""A link that rests: what is idle has no source and no consumer, so that no heartbeat
crosses the link, and nothing is lost or doubled when it is not idle any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from agent.config import LinkConfig
from agent.contract import (
    COMMANDS,
    Announce,
    Answer,
    Committed,
    command_consumer,
    command_deliver,
    direct_subject,
    leaf_stream,
)
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.records import LeafRecord
from agent.jetstream import JetStream, JetStreamError, UnavailableError
from agent.leaf.link import controller
from agent.leaf.link.announcer import HubExchange
from agent.leaf.link.command_mirror import controller as command_controller
from agent.leaf.link.command_mirror import rest
from agent.leaf.link.status import LinkState
from tests.harness.agents import leaf_config
from tests.harness.linked_pair import QUICK, LinkedPair, open_pair
from tests.harness.registrar import HubHand, LeafHand, flowing, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

SOON = 10.0
"""Much less than the two minutes after which a mirror that does not listen may ask for its consumer."""


@pytest.fixture(autouse=True)
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkConfig, "rest_seconds", lambda *_: 0.5)
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.5)
    monkeypatch.setattr(controller, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(command_controller, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(rest, "SETTLE_SECONDS", 2.5)


@asynccontextmanager
async def idle_pair(
    servers: ServerPair, tmp_path: Path, profile: Literal["normal", "thin"] = "normal"
) -> AsyncIterator[LinkedPair]:
    """A pair whose link rests."""
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
    config.link = LinkConfig(profile=profile)
    async with open_pair(LinkedPair, servers, config, LinkState.FLOWING) as pair:
        await pair.send(3)
        await rests(pair)
        yield pair


async def sourceless(pair: LinkedPair) -> None:
    """Return when the hub has no source of the leaf."""

    async def reached() -> bool:
        return not (await pair.hub.aggregate()).config.get("sources")

    await until(reached, "the source is gone")


async def rests(pair: LinkedPair) -> None:
    """Return when the hub has no source of the leaf, and the leaf counts as flowing."""
    await sourceless(pair)
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
        assert pair.epochs("hub_lost") == 0
        await rests(pair)
        await pair.agent.crash()
        await pair.hub.holds("edge-1", await publish(pair, "2"))


async def test_a_reading_that_came_while_its_source_went_is_not_said_to_be_lacking(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub.registrar():
        await flowing(hub, hand)

        async def rested() -> bool:
            said = await hand.announcement(confirmed=1)
            idle = replace(said, classes={"normal": replace(said.classes["normal"], idle=True)})
            await asyncio.sleep(0.5)  # one announcement a second is taken, after ten
            return (await hand.say(idle.encode())).classes["normal"].state == "resting"

        await until(rested, "the class rests")
        monkeypatch.setattr(AggregateController, "want", lambda *_: None)
        await hand.store()
        said = await hand.announcement(confirmed=1)
        acked = replace(said, classes={"normal": replace(said.classes["normal"], acked=2)})
        answer = (await hand.say(acked.encode())).classes["normal"]
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


def at_answer(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[Announce, Answer], Awaitable[None]]
) -> None:
    """Have `happens` come between the hub's answer to an announcement and the leaf that takes it."""
    asked = HubExchange.ask

    async def ask(self: HubExchange, announce: Announce) -> Answer | str:
        answer = await asked(self, announce)
        if isinstance(answer, Answer) and answer.refused is None:
            await happens(announce, answer)
        return answer

    monkeypatch.setattr(HubExchange, "ask", ask)


async def test_readings_that_come_between_the_question_and_the_answer_that_lets_it_rest_arrive_once(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        stored = asyncio.Event()

        async def store(announce: Announce, answer: Answer) -> None:
            rests = announce.classes["normal"].idle and answer.classes["normal"].state == "resting"
            if rests and not stored.is_set():
                await pair.send(3)
                stored.set()

        at_answer(monkeypatch, store)
        await pair.send(1)
        await asyncio.wait_for(stored.wait(), 60.0)
        await pair.exactly_once()
        await rests(pair)
        await pair.exactly_once()


async def test_readings_arrive_once_over_a_link_that_is_cut_as_they_end_the_rest(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        cuts = 0

        async def cut(announce: Announce, answer: Answer) -> None:
            nonlocal cuts
            if not announce.classes["normal"].idle and not cuts:
                cuts += 1
                servers.leaf.proxy.cut()

        at_answer(monkeypatch, cut)
        await pair.send(3)
        await until(lambda: cuts > 0, "the link is cut as the source is added again")
        await pair.reaches(LinkState.DOWN)
        await pair.send(3)
        servers.leaf.proxy.restore()
        await pair.exactly_once()
        await rests(pair)
        assert pair.epochs("hub_lost") == 0


async def test_readings_arrive_once_where_the_registrar_ends_before_it_has_stored_that_the_class_rests(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        await pair.send(3)
        await pair.exactly_once()
        saved = FleetStore.save_changed
        dropped = asyncio.Event()

        async def save(self: FleetStore, leaf: LeafRecord) -> None:
            if not leaf.classes["normal"].rests:
                await saved(self, leaf)
                return
            await sourceless(pair)
            dropped.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(FleetStore, "save_changed", save)
            await asyncio.wait_for(dropped.wait(), 60.0)
            await pair.stop_registrar()
        await pair.send(3)
        info = await pair.hub.aggregate()
        await pair.start_registrar()
        await pair.exactly_once()
        answer = await pair.hub.committed(Committed(AGGREGATE, info.created, info.last))
        assert "refused" not in answer
        await rests(pair)
        kept = await pair.arrived()
        await pair.send(3)

        async def reached() -> bool:
            return await pair.arrived() == kept + pair.sent[-3:]

        await until(reached, "what is new arrives once")
        assert pair.epochs("hub_lost") == 0


async def test_a_class_at_rest_says_that_its_readings_wait_while_the_registrar_is_down(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        await pair.stop_registrar()
        await pair.send(1)
        await pair.reaches(LinkState.UNVERIFIED)
        assert "what comes into a class at rest waits here" in pair.agent.leaf.link.status.sentence
        await pair.start_registrar()
        await pair.exactly_once()


async def test_what_comes_into_a_class_at_rest_arrives_after_its_leaf_announces_the_class_no_more(
    tmp_path: Path,
) -> None:
    async with open_server_pair(tmp_path, "edge-1", classes=("normal", "other")) as servers:
        hub = await hub_of(servers)
        normal, other = [await LeafHand.make(servers.leaf, cls) for cls in ("normal", "other")]
        other.run = normal.run

        async def announce(*hands: LeafHand) -> dict[str, str]:
            announces = [await hand.announcement(confirmed=hand.sent) for hand in hands]
            classes = {
                cls: replace(state, idle=True) for said in announces for cls, state in said.classes.items()
            }
            answer = await normal.say(replace(announces[0], classes=classes).encode())
            return {cls: said.state for cls, said in answer.classes.items()}

        async with hub.registrar():
            await normal.store()
            await other.store()

            async def rested() -> bool:
                await asyncio.sleep(0.5)  # one announcement a second is taken, after ten
                both = (await announce(normal, other)).get("other") == "resting"
                return both and not (await hub.aggregate()).config.get("sources")

            await until(rested, "both classes rest")
            last = await other.store()
            await announce(normal)

            async def reached() -> bool:
                sources = (await hub.aggregate()).sources
                return [(source["name"], source.get("seq")) for source in sources] == [(other.stream, last)]

            await until(reached, "what the class had stored last is at the hub")


class Commands:
    """Commands to the leaf of a pair whose link rests."""

    def __init__(self, pair: LinkedPair) -> None:
        self._pair = pair
        self.sent: list[int] = []

    async def rest(self) -> None:
        """Return once the hub has no consumer for the leaf."""

        async def dropped() -> bool:
            return await self._pair.hub.js.find_consumer(COMMANDS, command_consumer("edge-1")) is None

        await until(dropped, "the hub's consumer is gone")

    async def send(self, count: int = 1) -> None:
        """Store commands at the hub, and one for another leaf before each."""
        for _ in range(count):
            await self._pair.hub.js.publish("cmd.edge-2.tool.ping", b"{}")
            self.sent.append(await self._pair.hub.js.publish("cmd.edge-1.tool.ping", b"{}"))

    async def arrived(self, seconds: float = SOON) -> None:
        """All of them are on the leaf."""

        async def reached() -> bool:
            try:
                return [await self._is_here(seq) for seq in self.sent] == [True] * len(self.sent)
            except JetStreamError:
                return False

        await until(reached, "the commands are here", seconds)

    async def _is_here(self, seq: int) -> bool:
        return await self._pair.probe.js.get_message(COMMANDS, seq=seq) is not None


@pytest.mark.parametrize("profile", ["normal", "thin"])
async def test_commands_reach_a_leaf_whose_consumer_rests_soon(
    servers: ServerPair, tmp_path: Path, profile: Literal["normal", "thin"]
) -> None:
    async with idle_pair(servers, tmp_path, profile) as pair:
        commands = Commands(pair)
        for count in (1, 3, 2):
            await commands.rest()
            await commands.send(count)
            await commands.arrived()
        await commands.rest()
        await until(lambda: pair.agent.leaf.link.mirror_rows()[0]["up"], "a mirror at rest counts as up")


async def test_commands_reach_a_leaf_at_rest_whose_agent_is_dead_and_whose_registrar_was_restarted(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands = Commands(pair)
        await commands.rest()
        await pair.stop_registrar()
        await commands.send()
        await pair.start_registrar()
        await commands.arrived()
        await commands.rest()
        await pair.agent.crash()
        await commands.send(2)
        await commands.arrived()


async def test_a_command_that_is_lost_with_a_link_that_hangs_comes_over_the_next_one(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, hub = Commands(pair), pair.hub.js
        await commands.send(1)
        await commands.arrived()
        await commands.rest()
        servers.leaf.proxy.stall()
        await commands.send(1)

        async def delivered() -> bool:
            found = await hub.find_consumer(COMMANDS, command_consumer("edge-1"))
            return found is not None and found.deliveries == 1

        await until(delivered, "the hub has sent the command into a link that hangs")
        servers.leaf.proxy.cut()
        servers.leaf.proxy.restore()
        await commands.arrived(60.0)
        await commands.send(2)
        await commands.arrived()


async def test_commands_reach_a_leaf_at_rest_after_the_server_of_either_side_was_killed(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands = Commands(pair)
        for server in (servers.hub, servers.leaf):
            await commands.rest()
            await server.kill()
            await server.start()
            await until(lambda: pair.agent.leaf.link.controller.answered, "the hub answers")
            await until(lambda: pair.hub.nc.is_connected, "the hub's server answers")
            await commands.send(2)
            await commands.arrived(60.0)


async def test_a_mirror_that_is_recreated_during_its_rest_finds_its_consumer_at_the_hub(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it asks for it ever more rarely, and the next command waits for that."""
    async with idle_pair(servers, tmp_path) as pair:
        commands, epoch, ask = Commands(pair), pair.agent.state().command_epoch, JetStream.api
        delivers: list[str | None] = []

        async def api(self: JetStream, subject: str, *args: Any, **how: Any) -> dict[str, Any]:
            if subject == f"STREAM.CREATE.{COMMANDS}":
                found = await pair.hub.js.find_consumer(COMMANDS, command_consumer("edge-1"))
                delivers.append(None if found is None else found.config["deliver_subject"])
            return await ask(self, subject, *args, **how)

        await commands.rest()
        monkeypatch.setattr(JetStream, "api", api)
        await pair.probe.js.api(f"STREAM.DELETE.{COMMANDS}")
        await until(lambda: bool(delivers), "the mirror is created again")
        now = pair.agent.state().command_epoch
        assert now not in (None, epoch)
        assert delivers == [command_deliver("edge-1", str(now))]
        await commands.send()
        await commands.arrived()
        await commands.rest()


async def test_the_mirror_takes_nothing_but_commands_from_the_consumer_that_resets_it(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, leaf = Commands(pair), pair.probe.js
        await pair.hub.js.publish("cmd.edge-2.tool.ping", b"{}")
        for _ in range(3):
            await commands.rest()
            await commands.send(1)
            await commands.arrived()
            # The message that the resetter delivers would then be the mirror's next one by its sequence.
            while (await leaf.stream_info(leaf_stream("edge-1", "normal"))).last <= commands.sent[-1]:
                await pair.send(1)
        await commands.rest()
        mirror = await leaf.stream_info(COMMANDS)
        assert (mirror.messages, mirror.last) == (len(commands.sent), commands.sent[-1])
        await commands.send(1)
        await commands.arrived()


async def test_what_resets_the_mirror_is_gone_after_an_agent_that_was_stopped_meanwhile(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_HEARD", 600.0)
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
    stream = leaf_stream("edge-1", "normal")
    async with open_pair(LinkedPair, servers, config, LinkState.FLOWING) as pair:

        async def is_there() -> bool:
            return rest.RESETTER in await pair.probe.js.consumer_names(stream)

        async def is_gone() -> bool:
            return not await is_there()

        await until(is_there, "the mirror is being reset")
        await pair.agent.stop()
        assert await is_there()
        monkeypatch.setattr(LinkConfig, "rest_seconds", lambda *_: None)
        await pair.start_agent()
        await until(is_gone, "the next agent has deleted it")


async def test_the_consumer_that_keeps_the_mirror_awake_goes_though_the_first_request_fails(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, deleted, failures = Commands(pair), JetStream.delete_consumer, 0
        leaf = JetStream(await servers.leaf.connect("agent"))
        await commands.rest()

        async def delete(self: JetStream, stream: str, name: str) -> bool:
            nonlocal failures
            if name == rest.LISTENER and not failures:
                failures += 1
                raise UnavailableError("no answer")
            return await deleted(self, stream, name)

        async def is_gone() -> bool:
            names = [info.name async for info in leaf.consumers(COMMANDS)]
            return failures > 0 and rest.LISTENER not in names

        monkeypatch.setattr(rest, "SETTLE_SECONDS", 600.0)  # it is made again no sooner
        monkeypatch.setattr(JetStream, "delete_consumer", delete)
        await commands.send()
        await commands.arrived()
        await until(is_gone, "the consumer is deleted")
