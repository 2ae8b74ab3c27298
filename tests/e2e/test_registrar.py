"""The registrar on real servers; the leaf's side is done by hand, as the leaf's agent. Announcements that say
nothing new cross the link in few bytes, between releases that know this and those that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from nats.aio.msg import Msg

from agent.config import LeafMember
from agent.contract import (
    COMMANDS,
    Announce,
    Answer,
    Checkpoint,
    ClassAnswer,
    announce_subject,
    batch_subject,
    link_consumer,
    new_run,
)
from agent.hub.registrar import announcements, exchanges
from agent.hub.registrar.announce_service import MAX_ANNOUNCE
from agent.leaf.link.announcer import HubExchange
from tests.harness.registrar import HubHand, LeafHand, flowing
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until


async def test_a_leaf_that_announces_itself_is_sourced_under_its_own_domain(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar() as registrar:
        await hand.store(3)
        answer = await hand.announce()
        assert answer.stream == AGGREGATE
        info = await hub.holds(hand.domain, 3)
        assert info.last == 3
        message = await hub.js.get_message(AGGREGATE, seq=3)
        assert message is not None
        assert message.subject == batch_subject(hand.domain, "normal", "http")

        answer = await hand.announce(confirmed=3)
        assert answer == ClassAnswer(
            AGGREGATE,
            3,
            f"{hand.run}-normal-3",
            "flowing",
            None,
            Checkpoint(3, answer.message_id, AGGREGATE, 3),
        )
        row = registrar.status()["leaves"][hand.domain]
        assert (row["state"], row["linked"], row["classes"]["normal"]["cursor"]) == ("flowing", True, 3)


async def test_a_leaf_that_forges_the_domain_of_another_writes_into_its_own(
    hub: HubHand, hand: LeafHand
) -> None:
    forged = {"src": f"tel.{hand.domain}.>", "dest": "tel.edge-9.>"}
    await hand.js.ensure_stream({"name": hand.stream, "subject_transform": forged})
    async with hub.registrar():
        await flowing(hub, hand)
        message = await hub.js.get_message(AGGREGATE, seq=1)
        assert message is not None
        assert message.subject == batch_subject(hand.domain, "normal", "http")


async def test_the_streams_of_the_hub_hold_what_must_not_be_lost(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await hand.announce()
        config = (await hub.aggregate()).config
        assert "subjects" not in config
        assert (config["discard"], config["max_age"], config["compression"]) == ("new", 0, "s2")
        assert config.get("duplicate_window", 0) == 0
        commands = (await hub.js.stream_info(COMMANDS)).config
        assert (commands["subjects"], commands["max_consumers"]) == (["cmd.>"], -1)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row | {"v": 2}, "version 2 is not known"),
        (lambda row: row | {"domain": "edge-9"}, "was announced on the subject of 'edge-1'"),
        (lambda row: row | {"machine": "A B"}, "machine 'A B' is not"),
        (lambda row: row | {"clock": "x" * MAX_ANNOUNCE}, "above the limit"),
        (
            lambda row: row | {"classes": {"bulk": row["classes"]["normal"]}},
            "class 'bulk' of 'edge-1' is not",
        ),
        (without("run"), "run None is not a UUIDv7"),
    ],
)
async def test_what_is_wrong_with_an_announcement_is_said_and_the_next_one_is_answered(
    hub: HubHand, hand: LeafHand, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    async with hub.registrar():
        good = await hand.announcement()
        assert words in await hand.refused(json.dumps(change(json.loads(good.encode()))).encode())
        assert "not JSON" in await hand.refused(b"\xff{")
        assert (await hand.announce()).stream == AGGREGATE
        assert hub.counted("petiole_announcements_total", outcome="refused") == 2


async def test_a_domain_that_the_hub_does_not_know_is_refused(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(knows_leaves=False):
        words = await hand.refused((await hand.announcement()).encode())
        assert "'edge-1' is not among the leaves in the hub's configuration" in words


async def test_a_flood_of_announcements_is_held_off(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        data = (await hand.announcement()).encode()
        first, refused = await hand.say(data), list[str]()

        async def is_refused() -> bool:
            refused.append((await hand.say(data)).refused or "")
            return refused[-1] != ""

        await until(is_refused, "it is refused in the end")
        assert first.refused is None
        assert "too often" in refused[-1]


async def test_a_refused_leaf_hears_the_first_reason_however_often_it_asks_and_the_log_has_it_once(
    hub: HubHand, hand: LeafHand
) -> None:
    members = [LeafMember(user.domain, user.key, ["other"]) for user in hub.servers.hub.config.leaves]
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar(members=members) as registrar:
            data = (await hand.announcement()).encode()
            answers = [await hand.say(data) for _ in range(45)]
            leaf = registrar.status()["leaves"][hand.domain]
    reason = "class 'normal' of 'edge-1' is not in the hub's configuration"
    assert all(reason in (one.refused or "") and not one.later for one in answers)
    assert (leaf["word"], reason in leaf["state"]) == ("refused", True)
    assert len([one for one in logs if "is refused" in one["event"]]) == 1


async def test_another_machine_hears_whose_the_domain_is_however_often_it_asks(
    hub: HubHand, hand: LeafHand
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with hub.registrar() as registrar:
            announce = await hand.announcement()
            assert (await hand.say(announce.encode())).refused is None
            rival = replace(announce, machine="another", run=new_run()).encode()
            answers = [await hand.say(rival) for _ in range(45)]
            leaf = registrar.status()["leaves"][hand.domain]
    assert all("belongs to machine" in (one.refused or "") for one in answers)
    assert "belongs to machine" in leaf["state"]
    assert len([one for one in logs if one["log_level"] == "warning"]) <= 2


async def test_a_new_epoch_moves_the_source(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 4)
        old = hand.epoch
        await hand.next_epoch(start=5)
        answer = await hand.announce()
        assert (answer.cursor, answer.checkpoint) == (0, None)
        assert await hand.js.delete_consumer(hand.stream, link_consumer(old))
        await hub.holds(hand.domain, await hand.store(2))
        assert await hub.leaf_sequences(hand.domain, 1) == [1, 2, 3, 4, 5, 6]


async def test_a_flood_of_epochs_is_held_off(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await hand.announce()
        for _ in range(3):
            await hand.next_epoch(start=1)
            await hand.announce()
        await hand.next_epoch(start=1)
        words = await hand.refused((await hand.announcement()).encode())
        assert "new epochs too often" in words


async def test_a_checkpoint_that_the_hub_does_not_hold_is_not_agreed(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar():
        await flowing(hub, hand, 3)
        held = (await hand.announce(confirmed=3)).checkpoint
        assert held is not None
        assert (await hand.announce(held)).agreed is True
        assert (await hand.announce(replace(held, message_id="another"))).agreed is False
        assert (await hand.announce(replace(held, hub_seq=2))).agreed is False
        assert (await hand.announce(replace(held, hub_seq=99))).agreed is False


async def test_on_a_hub_server_that_is_too_old_no_leaf_is_taken_in(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(version="2.14.6") as registrar:
        words = await hand.refused((await hand.announcement()).encode())
        assert "the hub's server is nats-server 2.14.6" in words
        assert "take 2.15.1" in words
        assert words.removeprefix("no leaf is taken in: ") in registrar.status()["state"]


async def heard(seen: list[bytes], count: int) -> list[bool]:
    """Whether each announcement was in full, once there are so many: the registrar may answer first."""
    await until(lambda: len(seen) >= count, f"{count} announcements are heard")
    return [in_full(data) for data in seen]


@asynccontextmanager
async def announced(hub: HubHand) -> AsyncIterator[list[bytes]]:
    """What is announced at the hub as long as the context lasts."""
    seen: list[bytes] = []

    async def see(msg: Msg) -> None:
        seen.append(msg.data)

    subscription = await hub.nc.subscribe(announce_subject("*"), cb=see)
    await hub.nc.flush()
    yield seen
    await subscription.unsubscribe()


async def answered(exchange: HubExchange, announce: Announce) -> Answer:
    """The hub's answer; none or a refusal fails the test."""
    answer = await exchange.ask(announce)
    assert isinstance(answer, Answer), answer
    assert answer.refused is None, answer.refused
    return answer


def in_full(data: bytes) -> bool:
    return "classes" in json.loads(data)


async def test_what_is_announced_again_crosses_the_link_in_few_bytes_and_news_in_full(
    hub: HubHand, hand: LeafHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looks in (announcements, exchanges):
        monkeypatch.setattr(looks, "OBSERVED", 0.0)
    exchange = HubExchange(hand.nc, hand.domain, lambda _: None)
    async with hub.registrar(), announced(hub) as seen:
        await flowing(hub, hand)
        announce = await hand.announcement(confirmed=1)
        first = await answered(exchange, announce)
        for _ in range(3):
            assert await answered(exchange, announce) == first
        assert await heard(seen, 5) == [True, True, False, False, False]
        assert len(seen[-1]) < 40
        await hub.holds(hand.domain, await hand.store())
        news = await answered(exchange, announce)
        assert news.classes["normal"].cursor == 2, "the hub has news for a leaf that has none"
        assert await answered(exchange, await hand.announcement(confirmed=2)) != first
        assert (await heard(seen, 7))[5:] == [False, True]


async def test_the_agent_of_a_leaf_counts_as_heard_when_it_says_nothing_new(
    hub: HubHand, hand: LeafHand
) -> None:
    exchange = HubExchange(hand.nc, hand.domain, lambda _: None)
    async with hub.registrar() as registrar:
        announce = await hand.announcement()
        times = []
        for _ in range(3):
            await answered(exchange, announce)
            times.append(registrar._fleet.ownership._heard[hand.domain])
        assert times == sorted(set(times))


async def test_a_registrar_that_was_started_again_is_told_all(hub: HubHand, hand: LeafHand) -> None:
    exchange = HubExchange(hand.nc, hand.domain, lambda _: None)
    announce = await hand.announcement()
    async with announced(hub) as seen:
        async with hub.registrar():
            await answered(exchange, announce)
        async with hub.registrar() as registrar:
            await answered(exchange, announce)
        assert await heard(seen, 3) == [True, False, True]
        assert not registrar._problems.of(f"announcement of {hand.domain}")
