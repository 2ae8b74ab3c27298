"""Announcements that say nothing new cross the link in few bytes, between releases that know this and those
that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from agent.contract import Announce, Answer, ContractError, announce_subject, parse_announce
from agent.hub.registrar import announcements, standing
from agent.leaf.link.hub_exchange import HubExchange
from tests.harness.registrar import HubHand, LeafHand, hub_of
from tests.harness.servers import ServerPair
from tests.harness.wait import until


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
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looks in (announcements, standing):
        monkeypatch.setattr(looks, "OBSERVED", 0.0)
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    exchange = HubExchange(leaf.nc, leaf.domain)
    async with hub.registrar(), announced(hub) as seen:
        await leaf.announce()
        await hub.holds(leaf.domain, await leaf.store())
        announce = await leaf.announcement(confirmed=1)
        first = await answered(exchange, announce)
        for _ in range(3):
            assert await answered(exchange, announce) == first
        assert [in_full(data) for data in seen] == [True, True, False, False, False]
        assert len(seen[-1]) < 40
        await hub.holds(leaf.domain, await leaf.store())
        news = await answered(exchange, announce)
        assert news.classes["normal"].cursor == 2, "the hub has news for a leaf that has none"
        assert not in_full(seen[-1])
        assert await answered(exchange, await leaf.announcement(confirmed=2)) != first
        assert in_full(seen[-1])


async def test_the_agent_of_a_leaf_counts_as_heard_when_it_says_nothing_new(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    exchange = HubExchange(leaf.nc, leaf.domain)
    async with hub.registrar() as registrar:
        announce = await leaf.announcement()
        heard = []
        for _ in range(3):
            await answered(exchange, announce)
            heard.append(registrar._fleet.ownership._heard[leaf.domain])
        assert heard == sorted(set(heard))


async def test_a_registrar_that_was_started_again_is_told_all(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    exchange = HubExchange(leaf.nc, leaf.domain)
    announce = await leaf.announcement()
    async with announced(hub) as seen:
        async with hub.registrar():
            await answered(exchange, announce)
        async with hub.registrar() as registrar:
            await answered(exchange, announce)
        assert [in_full(data) for data in seen] == [True, False, True]
        assert not registrar._problems.of(f"announcement of {leaf.domain}")


async def test_a_leaf_announces_in_full_to_a_hub_of_an_earlier_release(servers: ServerPair) -> None:
    hub, leaf = await hub_of(servers), await LeafHand.make(servers.leaf)
    exchange = HubExchange(leaf.nc, leaf.domain)
    announce = await leaf.announcement()
    async with hub.registrar():
        await answered(exchange, announce)

    seen: list[bytes] = []

    async def respond(msg: Msg) -> None:
        seen.append(msg.data)
        try:
            parse_announce(msg.data, leaf.domain)
            row = json.loads(Answer().encode())
        except ContractError as error:
            row = json.loads(Answer(refused=str(error)).encode())
        del row["exchange"]
        await msg.respond(json.dumps(row).encode())

    async def responds() -> bool:
        try:
            return (await leaf.say(announce.encode())).refused is None
        except NoRespondersError:
            return False

    earlier = await hub.nc.subscribe(announce_subject("*"), cb=respond)
    await until(responds, "the leaf's server knows the responder")
    seen.clear()
    for _ in range(3):
        await answered(exchange, announce)
    assert [in_full(data) for data in seen] == [False, True, True, True], "one repeat, to no avail"
    await earlier.unsubscribe()
