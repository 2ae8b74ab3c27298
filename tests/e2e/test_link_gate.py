"""A link that may be open at certain times only, and one that its hub does not take."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest
from msgspec import structs

from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.base.wait import loop_time
from agent.config.values import Windows
from agent.hub.registrar import fleet_state
from agent.leaf.link import gate as link_gate
from agent.leaf.link.gate import DialSpread, LinkGate
from agent.leaf.link.status import LinkState
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer
from tests.harness.agents import CLASS
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until

NO_SPREAD = (lambda: None, lambda: 0.0)
NIGHT, NOON = datetime(2026, 11, 21, 23, 0), datetime(2026, 11, 21, 12, 0)


async def test_a_link_is_taken_down_outside_of_its_windows_and_up_again_within(servers: ServerPair) -> None:
    clock = [NOON]
    health, server = ServerHealth(Metrics()), servers.leaf.server
    gate = LinkGate(server, Windows(["22:00-06:00"]), health, *NO_SPREAD, lambda: clock[0])
    pid = server.pid
    await gate.follow()
    await servers.leaf.wait_linked(False)
    assert health.closed == "the link is closed until 22:00 by its windows"
    clock[0] = NIGHT
    await gate.follow()
    await servers.leaf.wait_linked()
    assert health.closed == ""
    assert server.pid == pid, "it is not started anew for it"


async def test_a_link_is_closed_though_another_change_of_the_server_is_refused_meanwhile(
    servers: ServerPair,
) -> None:
    server = servers.leaf.server
    wrong = structs.replace(server.config, max_payload=2**30)
    closed = asyncio.gather(server.set_config(wrong), server.set_link(False), return_exceptions=True)
    refused, _ = await closed
    assert isinstance(refused, ServerError)
    await servers.leaf.wait_linked(False)


async def test_a_server_that_is_started_again_while_the_link_is_closed_does_not_dial(
    servers: ServerPair,
) -> None:
    health = ServerHealth(Metrics())
    gate = LinkGate(servers.leaf.server, Windows(["22:00-06:00"]), health, *NO_SPREAD, lambda: NOON)
    await gate.follow()
    await servers.leaf.wait_linked(False)
    await servers.leaf.kill()
    await servers.leaf.start()
    await asyncio.sleep(0.5)  # it dials 14 ms after its start where it may
    assert not await servers.leaf.linked()


async def test_an_agent_that_starts_opens_the_link_that_the_one_before_has_closed(
    servers: ServerPair,
) -> None:
    leaf = servers.leaf
    pid = leaf.server.pid
    await leaf.server.set_link(False)
    await leaf.wait_linked(False)
    leaf.server.release()
    leaf.server = EmbeddedServer(leaf.config, leaf.directory)
    await leaf.start()
    await leaf.wait_linked()
    assert leaf.server.pid == pid, "its server has gone on"


def seconds_to_loss(pair: LinkedPair) -> float:
    return pair.agent.value("petiole_seconds_to_loss", **{"class": CLASS})


async def test_a_closed_link_says_so_and_readings_wait_until_it_opens(
    servers: ServerPair, tmp_path: Path
) -> None:
    clock = [NIGHT]
    async with open_linked_pair(servers, tmp_path / "state") as pair:
        gate = LinkGate(
            servers.leaf.server,
            Windows(["22:00-06:00"]),
            pair.agent.health,
            *NO_SPREAD,
            lambda: clock[0],
        )
        clock[0] = NOON
        await gate.follow()
        await pair.reaches(LinkState.CLOSED)
        assert pair.agent.leaf.link.status.sentence.startswith(
            "the link is closed until 22:00 by its windows"
        )
        await until(lambda: seconds_to_loss(pair) == math.inf, "nothing comes in")
        await pair.send(20)
        await until(lambda: seconds_to_loss(pair) < math.inf, "what comes in fills the stream")
        clock[0] = NIGHT
        await gate.follow()
        await pair.exactly_once()
        await pair.reaches(LinkState.FLOWING)


@asynccontextmanager
async def pair_of_large_fleet(
    servers: ServerPair, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LinkedPair]:
    """A linked leaf whose hub has said that the links of all its leaves take ten seconds."""
    monkeypatch.setattr(fleet_state, "_WORK_SECONDS", fleet_state._LEAST_SPREAD)
    async with open_linked_pair(servers, directory / "state") as pair:
        await until(lambda: pair.agent.leaf._state.current.spread > 0, "the hub has said for how long")
        yield pair


@asynccontextmanager
async def spread_dials(pair: LinkedPair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[set[str]]:
    """The gate of a leaf whose hub has so many leaves that each waits four seconds, and why it was closed."""
    monkeypatch.setattr(link_gate, "LOOK_SECONDS", 2.5)
    leaf, health, why = pair.agent.leaf, pair.agent.health, set[str]()
    gate = LinkGate(
        pair.servers.leaf.server,
        Windows([]),
        health,
        leaf.uplink,
        lambda: leaf._state.current.spread,
        dials=DialSpread(lambda: 0.4),
    )

    async def follow() -> None:
        while True:
            await gate.follow()
            why.add(health.closed)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        yield why
        following.cancel()


async def test_a_hub_that_answers_and_takes_no_link_is_dialled_again_after_a_while(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair_of_large_fleet(servers, tmp_path, monkeypatch) as pair,
        spread_dials(pair, monkeypatch) as why,
    ):
        await pair.send(20)
        servers.hub.pause()
        servers.leaf.proxy.cut()
        servers.leaf.proxy.restore()
        await pair.reaches(LinkState.CLOSED)
        await pair.send(20)
        servers.hub.resume()
        linked = await servers.leaf.linked()
        assert not (linked and pair.agent.health.closed), "a link that is closed is not dialled"
        await pair.reaches(LinkState.FLOWING)
        await pair.exactly_once()
    assert {text[:24] for text in why} == {"", "the link is closed until"}


async def test_a_hub_that_is_not_there_is_dialled_all_the_time(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair_of_large_fleet(servers, tmp_path, monkeypatch) as pair,
        spread_dials(pair, monkeypatch) as why,
    ):
        servers.leaf.proxy.cut()
        await down_for_looks(pair)
        servers.leaf.proxy.restore()
        await servers.leaf.wait_linked()
    assert why == {""}


async def test_a_hub_of_few_leaves_is_dialled_all_the_time(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_linked_pair(servers, tmp_path / "state") as pair:
        await pair.reaches(LinkState.FLOWING)
        async with spread_dials(pair, monkeypatch) as why:
            servers.hub.pause()
            servers.leaf.proxy.cut()
            servers.leaf.proxy.restore()
            await down_for_looks(pair)
            servers.hub.resume()
            await servers.leaf.wait_linked()
    assert why == {""}


async def down_for_looks(pair: LinkedPair) -> None:
    """Return when the link has been down for longer than a gate needs to see it."""
    uplink = pair.agent.leaf.uplink
    await until(lambda: (link := uplink()) is not None and not link.up, "the link is down")
    lost = loop_time()
    await until(lambda: loop_time() - lost > 3 * link_gate.LOOK_SECONDS, "its gate has looked at it")
