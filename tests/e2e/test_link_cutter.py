"""Links that have to go are cut until they are gone, also where the hub's server does not do it at once. The
server is real; that it is slow, or does not know the link yet, is played by a client that answers for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.hub.registrar import link_cutter
from agent.hub.registrar.fleet_events import LinkEvent
from agent.hub.registrar.fleet_store import FleetStore
from agent.hub.registrar.link_cutter import LinkCutter
from agent.hub.registrar.problems import ActiveProblems
from agent.jetstream import JetStream
from agent.server.permissions import KICK
from tests.harness.seed_servers import open_seed

OLD, NEW = frozenset({"gone", "kept"}), frozenset({"kept"})
LINK, OTHER = ("hub-1", 7), ("hub-1", 8)


class Kicked:
    """What was asked to be cut, and how the next of it is answered: a body, or None for not at all."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: list[bytes | None] = []

    async def take(self, msg: Msg) -> None:
        self.asked.append(json.loads(msg.data)["cid"])
        answer = self.answers.pop(0) if self.answers else b"{}"
        if answer is not None:
            await msg.respond(answer)


@asynccontextmanager
async def cutter_of(
    directory: Path, before: frozenset[str] | None, leads: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[LinkCutter, Kicked, FleetStore]]:
    async with open_seed(directory) as seed:
        client: Client = await seed.connect("hub")
        kicked = Kicked()
        for server in ("hub-1", "hub-2"):
            await client.subscribe(KICK.format(server), cb=kicked.take)
        store = FleetStore(client, JetStream(client), 1, ActiveProblems())
        await store.ensure()
        if before is not None:
            await store.save_let_in(before)
        yield LinkCutter(client, store, NEW, {"gone": "edge-1"}, leads), kicked, store


@pytest.mark.parametrize("answer", [None, b'{"error": "no such client"}'], ids=["unanswered", "refused"])
async def test_a_revoked_link_that_was_not_cut_at_once_is_cut_while_it_is_up(
    tmp_path: Path, answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_cutter, "_SECONDS", 0.5)
    async with cutter_of(tmp_path, NEW) as (cutter, kicked, _):
        await cutter.settle([], complete=True)
        kicked.answers = [answer, answer]
        assert await cutter.refuses(LinkEvent(LINK, "gone", "leaf", ""))
        assert not cutter.settled
        await cutter.settle([LINK, OTHER], complete=True)
        assert not cutter.settled
        await cutter.settle([LINK, OTHER], complete=True)
        assert cutter.settled
        assert kicked.asked == [7, 7, 7], "the other link stays"


async def test_an_agent_that_does_not_lead_any_more_cuts_nothing(tmp_path: Path) -> None:
    async with cutter_of(tmp_path, OLD, lambda: False) as (cutter, kicked, store):
        await cutter.settle([LINK, OTHER], complete=True)
        await cutter.refuses(LinkEvent(LINK, "gone", "leaf", ""))
        assert not kicked.asked
        assert not cutter.settled
        assert await store.let_in() == OLD


async def test_a_link_that_its_server_reports_before_it_lists_it_is_cut(tmp_path: Path) -> None:
    async with cutter_of(tmp_path, NEW) as (cutter, kicked, _):
        await cutter.settle([], complete=True)
        kicked.answers = [b'{"error": "no such client"}', b'{"error": "no such client"}']
        await cutter.refuses(LinkEvent(LINK, "gone", "leaf", ""))
        await cutter.settle([OTHER], complete=True)
        assert not cutter.settled
        await cutter.settle([OTHER], complete=True)
        assert cutter.settled
        assert kicked.asked == [7, 7, 7]


async def test_a_link_that_went_by_itself_is_not_cut_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_cutter, "_UNLISTED_SECONDS", 0.0)
    async with cutter_of(tmp_path, NEW) as (cutter, kicked, _):
        await cutter.settle([], complete=True)
        kicked.answers = [b'{"error": "no such client"}']
        await cutter.refuses(LinkEvent(LINK, "gone", "leaf", ""))
        await cutter.settle([OTHER], complete=True)
        assert cutter.settled
        assert kicked.asked == [7]


async def test_all_links_are_cut_once_after_a_key_has_gone_and_one_that_stays_is_cut_again(
    tmp_path: Path,
) -> None:
    async with cutter_of(tmp_path, OLD) as (cutter, kicked, store):
        kicked.answers = [b'{"error": "busy"}', b'{"error": "busy"}']
        await cutter.settle([LINK, OTHER], complete=True)
        assert not cutter.settled
        assert await store.let_in() == OLD, "a registrar that is killed here begins again"
        back = ("hub-1", 9)
        await cutter.settle([LINK, back], complete=True)
        assert cutter.settled
        assert sorted(kicked.asked) == [7, 7, 8], "a leaf that came back with its good key stays"
        assert await store.let_in() == NEW


async def test_links_that_come_up_while_others_are_being_cut_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_cutter, "_SECONDS", 0.5)
    async with cutter_of(tmp_path, NEW) as (cutter, kicked, _):
        await cutter.settle([], complete=True)
        kicked.answers = [None, None, None]
        await cutter.refuses(LinkEvent(LINK, "gone", "leaf", ""))
        cut_again = cutter.settle([LINK], complete=True)
        await asyncio.gather(cut_again, cutter.refuses(LinkEvent(OTHER, "gone", "leaf", "")))
        await cutter.settle([LINK, OTHER], complete=True)
        assert cutter.settled
        assert sorted(kicked.asked) == [7, 7, 7, 8, 8]


async def test_links_of_a_server_that_did_not_name_them_in_time_are_cut_once_it_does(tmp_path: Path) -> None:
    async with cutter_of(tmp_path, OLD) as (cutter, kicked, store):
        late = ("hub-2", 3)
        await cutter.settle([LINK], complete=False)
        assert not cutter.settled
        assert await store.let_in() == OLD
        back = ("hub-1", 9)
        await cutter.settle([back, late], complete=True)
        assert cutter.settled
        assert kicked.asked == [7, 3], "a leaf that came back with its good key stays"
        assert await store.let_in() == NEW
