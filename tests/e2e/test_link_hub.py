"""What the leaf says of a hub that refuses, is full, or lacks a permission, and that it goes on by itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agent.config import Size
from agent.contract import Committed, announce_subject
from agent.hub.registrar import stalled_sources
from agent.leaf import stream_configs
from agent.leaf.link import controller, decide
from agent.leaf.link.status import LinkState
from agent.server import link_permissions
from agent.server.permissions import Permissions
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.registrar import LeafHand
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

WINDOW = 50


@asynccontextmanager
async def servers_without(
    directory: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], bool]
) -> AsyncIterator[ServerPair]:
    """Servers whose hub lacks some permissions of the link."""
    whole = link_permissions.leaf_link

    def lacking(*leaf: Any, **more: Any) -> Permissions:
        allowed = whole(*leaf, **more)
        return structs.replace(
            allowed,
            publish=tuple(one for one in allowed.publish if not missing(one)),
            subscribe=tuple(one for one in allowed.subscribe if not missing(one)),
        )

    monkeypatch.setattr(link_permissions, "leaf_link", lacking)
    async with open_server_pair(directory, "edge-1") as servers:
        yield servers


async def permitted(pair: LinkedPair, wrong: pytest.MonkeyPatch) -> None:
    """The hub's server as it should be; it takes new permissions of a leaf in only when it starts."""
    wrong.undo()
    await pair.servers.hub.stop()
    await pair.servers.hub.start()


def said_at_hub(pair: LinkedPair, sentence: str) -> bool:
    """Whether the registrar says this of the leaf."""
    return sentence in pair.registrar.status()["leaves"]["edge-1"]["state"]


async def test_without_its_reset_answers_the_link_is_unheard_and_flows_once_they_are_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "UNHEARD_AFTER", 1.0)
    monkeypatch.setattr(stalled_sources, "_FIRST_WAIT", 0.5)
    with pytest.MonkeyPatch.context() as wrong:
        async with (
            servers_without(tmp_path, wrong, lambda subject: subject.startswith("$JSC.R.")) as servers,
            open_linked_pair(servers, tmp_path / "state") as pair,
        ):
            await pair.send(3)
            await pair.reaches(LinkState.UNHEARD)
            assert "$JSC.R.*" in pair.agent.leaf.link.status.sentence
            await until(lambda: said_at_hub(pair, "lacks a permission of the link"), "the hub says so too")
            await permitted(pair, wrong)
            await pair.exactly_once()
            await pair.reaches(LinkState.FLOWING)


async def test_without_flow_control_the_link_is_stuck_after_a_window_and_flows_once_it_is_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "STUCK_AFTER", 1.0)
    monkeypatch.setattr(controller, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(stream_configs, "MAX_ACK_PENDING", WINDOW)
    with pytest.MonkeyPatch.context() as wrong:
        async with (
            servers_without(tmp_path, wrong, lambda one: one.startswith("$JS.FC.TEL")) as servers,
            open_linked_pair(servers, tmp_path / "state") as pair,
        ):
            await pair.send(3 * WINDOW)
            await pair.reaches(LinkState.STUCK)
            assert "$JS.FC.TEL_edge-1_normal.>" in pair.agent.leaf.link.status.sentence
            await until(lambda: said_at_hub(pair, "permission for $JS.FC"), "the hub says so too")
            await permitted(pair, wrong)
            await pair.all_there()
            await pair.reaches(LinkState.FLOWING)


async def test_a_full_hub_makes_the_leaf_wait_and_lets_it_go_on_once_there_is_room(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with open_linked_pair(servers, tmp_path / "state", max_bytes=Size(2 * 2**20)) as pair:
        for _ in range(30):
            await pair.send_bytes(os.urandom(100_000).hex())
        pair.agent.leaf.link.controller.announce_now()
        await pair.reaches(LinkState.FULL)
        info = await pair.hub.aggregate()
        assert len(await pair.arrived()) < len(pair.sent)
        answer = await pair.hub.committed(Committed(AGGREGATE, info.created, info.last))
        assert answer["purged"] > 0
        await pair.hub.holds("edge-1", (await pair.probe.js.stream_info(pair.probe.stream)).last)
        pair.agent.leaf.link.controller.announce_now()
        await pair.reaches(LinkState.FLOWING)


async def test_a_leaf_is_told_that_another_machine_announces_its_domain(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with open_linked_pair(servers, tmp_path / "state") as pair:
        await pair.send(1)
        await pair.agreed()
        rival = LeafHand(servers.leaf, pair.probe.nc)
        rival.epoch = pair.epoch
        data = replace(await rival.announcement(), machine="another").encode()
        reply = await pair.probe.nc.request(announce_subject("edge-1"), data, timeout=30)
        assert b"refused" in reply.data
        pair.agent.leaf.link.controller.announce_now()
        await pair.reaches(LinkState.CONTESTED)
        await pair.send(3)
        await pair.exactly_once()


async def test_a_leaf_that_the_hub_does_not_know_says_so_and_keeps_its_readings(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with open_linked_pair(
        servers, tmp_path / "state", knows_leaves=False, state=LinkState.REFUSED
    ) as pair:
        assert "not among the leaves in the hub's configuration" in pair.agent.leaf.link.status.sentence
        await pair.send(3)
        await pair.stop_registrar()
        await pair.start_registrar()
        await pair.exactly_once()
        await pair.reaches(LinkState.FLOWING)
