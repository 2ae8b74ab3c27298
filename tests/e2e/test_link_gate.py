"""A link that may be open at certain times only."""

from __future__ import annotations

import asyncio
from datetime import datetime

from agent.link.windows import Windows
from agent.metrics import Metrics
from agent.server.gate import LinkGate
from agent.server.health import ServerHealth
from tests.servers import World

NIGHT, NOON = datetime(2026, 11, 21, 23, 0), datetime(2026, 11, 21, 12, 0)


async def test_a_link_is_taken_down_outside_of_its_windows_and_up_again_within(world: World) -> None:
    clock = [NOON]
    health, server = ServerHealth(Metrics()), world.leaf.server
    gate = LinkGate(server, Windows(["22:00-06:00"]), health, lambda: clock[0])
    pid = server.pid
    await gate.follow()
    await world.leaf.wait_linked(False)
    assert health.closed == "the link is closed until 22:00 by its windows"
    clock[0] = NIGHT
    await gate.follow()
    await world.leaf.wait_linked()
    assert health.closed == ""
    assert server.pid == pid, "it is not started anew for it"


async def test_a_server_that_is_started_again_while_the_link_is_closed_does_not_dial(world: World) -> None:
    health = ServerHealth(Metrics())
    gate = LinkGate(world.leaf.server, Windows(["22:00-06:00"]), health, lambda: NOON)
    await gate.follow()
    await world.leaf.wait_linked(False)
    await world.leaf.kill()
    await world.leaf.start()
    await asyncio.sleep(0.5)  # it dials 14 ms after its start where it may
    assert not await world.leaf.linked()
