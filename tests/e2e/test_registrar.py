"""The registrar on real servers; the leaf's side is done by hand, as the leaf's agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.contract import (
    COMMANDS,
    Checkpoint,
    ClassAnswer,
    batch_subject,
    link_consumer,
)
from agent.hub.registrar.announce_service import MAX_ANNOUNCE
from tests.harness.registrar import LeafHand, hub_of
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE


async def test_a_leaf_that_announces_itself_is_sourced_under_its_own_domain(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar() as registrar:
        await leaf.store(3)
        answer = await leaf.announce()
        assert answer.stream == AGGREGATE
        info = await hub.holds(leaf.domain, 3)
        assert info.last == 3
        message = await hub.js.get_message(AGGREGATE, seq=3)
        assert message is not None
        assert message.subject == batch_subject(leaf.domain, "normal", "http")

        answer = await leaf.announce(confirmed=3)
        assert answer == ClassAnswer(
            AGGREGATE,
            3,
            f"{leaf.run}-normal-3",
            "flowing",
            None,
            Checkpoint(3, answer.message_id, AGGREGATE, 3),
        )
        row = registrar.status()["leaves"][leaf.domain]
        assert (row["state"], row["linked"], row["classes"]["normal"]["cursor"]) == ("flowing", True, 3)


async def test_a_leaf_that_forges_the_domain_of_another_writes_into_its_own(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    forged = {"src": f"tel.{leaf.domain}.>", "dest": "tel.edge-9.>"}
    await leaf.js.ensure_stream({"name": leaf.stream, "subject_transform": forged})
    async with hub.registrar():
        await leaf.announce()
        await hub.holds(leaf.domain, await leaf.store())
        message = await hub.js.get_message(AGGREGATE, seq=1)
        assert message is not None
        assert message.subject == batch_subject(leaf.domain, "normal", "http")


async def test_the_streams_of_the_hub_hold_what_must_not_be_lost(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        await leaf.announce()
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
    servers: ServerPair, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        good = await leaf.announcement()
        assert words in await leaf.refused(json.dumps(change(json.loads(good.encode()))).encode())
        assert "not JSON" in await leaf.refused(b"\xff{")
        assert (await leaf.announce()).stream == AGGREGATE
        assert hub.counted("petiole_announcements_total", outcome="refused") == 2


async def test_a_domain_that_the_hub_does_not_know_is_refused(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar(knows_leaves=False):
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "'edge-1' is not among the leaves in the hub's configuration" in words


async def test_a_flood_of_announcements_is_held_off(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        data = (await leaf.announcement()).encode()
        answers = [await leaf.say(data) for _ in range(15)]
        refused = [one.refused for one in answers if one.refused]
        assert refused
        assert all("too often" in text for text in refused)
        assert answers[0].refused is None


async def test_a_new_epoch_moves_the_source(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        await leaf.store(4)
        await leaf.announce()
        await hub.holds(leaf.domain, 4)
        old = leaf.epoch
        await leaf.next_epoch(start=5)
        answer = await leaf.announce()
        assert (answer.cursor, answer.checkpoint) == (0, None)
        assert await leaf.js.delete_consumer(leaf.stream, link_consumer(old))
        await hub.holds(leaf.domain, await leaf.store(2))
        assert await hub.leaf_sequences(leaf.domain, 1) == [1, 2, 3, 4, 5, 6]


async def test_a_flood_of_epochs_is_held_off(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        await leaf.announce()
        for _ in range(3):
            await leaf.next_epoch(start=1)
            await leaf.announce()
        await leaf.next_epoch(start=1)
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "new epochs too often" in words


async def test_a_checkpoint_that_the_hub_does_not_hold_is_not_agreed(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar():
        await leaf.store(3)
        await leaf.announce()
        await hub.holds(leaf.domain, 3)
        held = (await leaf.announce(confirmed=3)).checkpoint
        assert held is not None
        assert (await leaf.announce(held)).agreed is True
        assert (await leaf.announce(replace(held, message_id="another"))).agreed is False
        assert (await leaf.announce(replace(held, hub_seq=2))).agreed is False
        assert (await leaf.announce(replace(held, hub_seq=99))).agreed is False


async def test_on_a_hub_server_that_is_too_old_no_leaf_is_taken_in(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    async with hub.registrar(version="2.14.6") as registrar:
        words = await leaf.refused((await leaf.announcement()).encode())
        assert "the hub's server is nats-server 2.14.6" in words
        assert "take 2.15.1" in words
        assert words.removeprefix("no leaf is taken in: ") in registrar.status()["state"]
