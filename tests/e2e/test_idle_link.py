"""A link that rests: what is idle has no source and no consumer, so that no heartbeat
crosses the link, and nothing is lost or doubled when it is not idle any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.contract import Announce, Answer, Committed, direct_subject
from agent.hub.registrar.aggregate_controller import AggregateController
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.records import LeafRecord
from agent.leaf.link.announcer import HubExchange
from agent.leaf.link.status import LinkState
from tests.harness.idle_link import idle_pair, rests, soon_idle, sourceless
from tests.harness.linked_pair import LinkedPair
from tests.harness.registrar import HubHand, LeafHand, flowing, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

__all__ = ["soon_idle"]


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
            answer = await hand.say(idle.encode())
            return answer.refused is None and answer.classes["normal"].state == "resting"

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
