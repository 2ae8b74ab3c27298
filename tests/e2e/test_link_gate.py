"""A link that may be open at certain times only."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from pathlib import Path

from msgspec import structs

from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.config.values import Windows
from agent.leaf.link.status import LinkState
from agent.server.health import ServerHealth
from agent.server.watch import LinkScheduler
from tests.harness.agents import CLASS
from tests.harness.linked_pair import LinkedPair, open_linked_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until

NIGHT, NOON = datetime(2026, 11, 21, 23, 0), datetime(2026, 11, 21, 12, 0)


async def test_a_link_is_taken_down_outside_of_its_windows_and_up_again_within(servers: ServerPair) -> None:
    clock = [NOON]
    health, server = ServerHealth(Metrics()), servers.leaf.server
    gate = LinkScheduler(server, Windows(["22:00-06:00"]), health, lambda: clock[0])
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
    gate = LinkScheduler(servers.leaf.server, Windows(["22:00-06:00"]), health, lambda: NOON)
    await gate.follow()
    await servers.leaf.wait_linked(False)
    await servers.leaf.kill()
    await servers.leaf.start()
    await asyncio.sleep(0.5)  # it dials 14 ms after its start where it may
    assert not await servers.leaf.linked()


def seconds_to_loss(pair: LinkedPair) -> float:
    return pair.agent.value("petiole_seconds_to_loss", **{"class": CLASS})


async def test_a_closed_link_says_so_and_readings_wait_until_it_opens(
    servers: ServerPair, tmp_path: Path
) -> None:
    clock = [NIGHT]
    async with open_linked_pair(servers, tmp_path / "state") as pair:
        gate = LinkScheduler(
            servers.leaf.server, Windows(["22:00-06:00"]), pair.agent.health, lambda: clock[0]
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
