"""Declared links under the permissions that are rendered: they flow, and open nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.contract import link_deliver
from agent.server import permissions
from agent.server.permissions import LinkRights, declared_link
from tests.harness.configured import rogue_server
from tests.harness.declared import End, at, hub_source, leaf_mirror, rights
from tests.harness.servers import ServerPair, is_answered, open_server_pair
from tests.harness.wait import until

LEAF, HUB = leaf_mirror(), hub_source("edge-1")
READ_PLANS = "$JS.API.STREAM.MSG.GET.PLANS"
FORBIDDEN = (
    *(f"$JS.hub.API.STREAM.{verb}.PLANS" for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE")),
    *(f"$JS.hub.API.CONSUMER.{verb}.PLANS" for verb in ("LIST", "NAMES")),
    "$JS.hub.API.CONSUMER.MSG.NEXT.PLANS.x",
    "$JS.hub.API.CONSUMER.DELETE.PLANS.x",
    *(f"$JS.hub.API.{verb}.OTHER" for verb in ("STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.CREATE")),
    "$JS.hub.API.CONSUMER.CREATE.OTHER.spy",
    "$JS.hub.API.STREAM.CREATE.NEW",
    "$JS.edge-2.API.STREAM.INFO.LOCAL",
    "plans.a",
)


@asynccontextmanager
async def declared_world(
    directory: Path, *, takes: tuple[str, ...] = ("PLANS",), gives: tuple[str, ...] = ("LOCAL",)
) -> AsyncIterator[tuple[ServerPair, End, End]]:
    """A server pair with PLANS and OTHER on the hub and LOCAL on the leaf, ten messages each."""
    links = {
        "edge-1": rights(LEAF, "LOCAL", "PLANS"),
        "edge-2": rights(LEAF),
        "hub": rights(HUB, "PLANS", "OTHER", "ALL"),
    }
    async with open_server_pair(
        directory, "edge-1", "edge-2", takes=takes, gives=gives, links=links
    ) as servers:
        hub, leaf = End(await servers.hub.connect("registrar")), End(await servers.leaf.connect("agent"))
        # The users of the rendered servers may publish only where the product does.
        await hub.make("PLANS", "cmd.plans.>")
        await hub.make("OTHER", "cmd.other.>")
        await leaf.make("LOCAL", "tel.edge-1.local.>")
        for number in range(10):
            await hub.store("cmd.plans.a", f"plan {number}")
            await hub.store("cmd.other.a", f"other {number}")
            await leaf.store("tel.edge-1.local.a", f"local {number}")
        yield servers, hub, leaf


async def test_links_flow_both_ways_under_the_rendered_permissions(tmp_path: Path) -> None:
    async with (
        declared_world(tmp_path) as (servers, hub, leaf),
        at(servers.leaf, LEAF) as below,
        at(servers.hub, HUB) as above,
    ):
        await leaf.holds("PLANS", [f"plan {number}" for number in range(10)])
        await hub.holds("ALL", [f"local {number}" for number in range(10)])
        await below.is_in("PLANS", "flowing")
        await above.is_in("ALL from LOCAL@edge-1", "flowing")
        await hub.store("cmd.plans.a", *[f"more {number}" for number in range(200)])
        await leaf.store("tel.edge-1.local.a", "last")
        await leaf.holds("PLANS", [f"plan {n}" for n in range(10)] + [f"more {n}" for n in range(200)])
        await hub.holds("ALL", [*(f"local {number}" for number in range(10)), "last"])


async def test_a_mirror_that_its_agent_may_not_read_flows_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_rendered_before(links: Iterable[LinkRights]) -> tuple[str, ...]:
        return tuple(subject for subject in declared_link(links) if subject != READ_PLANS)

    monkeypatch.setattr(permissions, "declared_link", as_rendered_before)
    mirror = leaf_mirror()
    mirror.domain = "edge-2"
    async with declared_world(tmp_path) as (servers, _, _leaf), at(servers.leaves["edge-2"], mirror) as below:
        await below.is_in("PLANS", "flowing")
        agent = await servers.leaves["edge-2"].connect("agent")
        assert not await is_answered(agent, READ_PLANS)


async def test_what_is_not_granted_does_not_flow_and_the_sentence_says_which_option_is_missing(
    tmp_path: Path,
) -> None:
    async with (
        declared_world(tmp_path, takes=(), gives=()) as (servers, _, leaf),
        at(servers.leaf, LEAF) as below,
        at(servers.hub, HUB) as above,
    ):
        await above.is_in("ALL from LOCAL@edge-1", "down", says="`gives` of its [[leaf]]")
        await below.is_in("PLANS", "down", says="`takes` of its [[leaf]]")
        assert await leaf.texts("PLANS") == []


async def test_who_may_take_a_stream_may_do_nothing_else_with_it_or_with_others(tmp_path: Path) -> None:
    async with declared_world(tmp_path) as (servers, _, _leaf):
        await servers.leaf.stop()
        async with rogue_server(servers.leaf, tmp_path / "rogue") as owner:
            await until(lambda: is_answered(owner, "$JS.hub.API.STREAM.INFO.PLANS"), "it may take PLANS")
            answers = await asyncio.gather(*(is_answered(owner, subject) for subject in FORBIDDEN))
            assert [one for one, answered in zip(FORBIDDEN, answers, strict=True) if answered] == []
            heard: list[str] = []

            async def hear(msg: object) -> None:
                heard.append(str(msg))

            for spied in (f"{link_deliver('hub', 'edge-2', 'PLANS')}.>", "$JS.M.>", ">"):
                await owner.subscribe(spied, cb=hear)
            await owner.flush()
            neighbour = leaf_mirror()
            neighbour.domain = "edge-2"
            async with at(servers.leaves["edge-2"], neighbour) as one:
                await one.is_in("PLANS", "flowing")
            assert [one for one in heard if "plan " in one] == []
