"""A hub of three machines whose leader is killed or stopped again and again while a leaf stores."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random

import pytest

from agent.jetstream import JetStream, JetStreamError
from tests.faults.report import Case
from tests.faults.schedule import seed_of
from tests.harness.fleet import ids_in
from tests.harness.hub_machines import HubMachines, connected_to, hubs_and_leaf
from tests.harness.registrar import LeafHand
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until, wait_for

ROUNDS = 9
_STOPPED_SECONDS = 5.0
_EVERY = 0.05


async def store(leaf: LeafHand, over: asyncio.Event) -> None:
    """Twenty messages a second, until `over` is set."""
    while not over.is_set():
        await leaf.store()
        await asyncio.sleep(_EVERY)


async def strike(hubs: HubMachines, fault: str) -> None:
    """Kill or stop the agent or machine that leads, and have it back once another one leads."""
    first = await asyncio.to_thread(hubs.leader)
    agent = hubs.agents[first]
    assert agent.process is not None
    if fault == "stop":
        agent.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(_STOPPED_SECONDS)
        await asyncio.to_thread(hubs.leader, first)
        agent.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(wait_for, lambda: "standby" in agent.status(), "it stands by")
        return
    if fault == "machine":
        await asyncio.to_thread(hubs.kill, first)
    else:
        agent.end(signal.SIGKILL)
    await asyncio.to_thread(hubs.leader, first)
    await asyncio.to_thread(agent.start)


@pytest.mark.timeout(600)
async def test_the_leading_machine_of_a_hub_is_killed_or_stopped_again_and_again(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "each message once; another machine leads after each fault"
    faults = ["agent", "machine", "stop"] * (ROUNDS // 3)
    case.seed = seed_of()
    Random(case.seed).shuffle(faults)
    async with hubs_and_leaf(tmp_path) as (hubs, leaf):
        over = asyncio.Event()
        storing = asyncio.create_task(store(leaf, over))
        for fault in faults:
            await strike(hubs, fault)
        over.set()
        await storing
        registrar = await connected_to(hubs, "registrar", hubs.leader())
        js = JetStream(registrar)

        async def all_there() -> bool:
            try:
                return (await js.stream_info(AGGREGATE)).messages >= leaf.sent
            except JetStreamError:
                return False

        await until(all_there, "all that was stored is at the hub")
        (found,) = (await ids_in(js, AGGREGATE)).values()
        case.sent = case.acknowledged = leaf.sent
        case.lost, case.duplicates = leaf.sent - len(set(found)), len(found) - len(set(found))
        assert (case.lost, case.duplicates) == (0, 0)
        await registrar.close()
