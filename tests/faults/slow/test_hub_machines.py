"""A hub of three machines whose leader is killed, stopped, cut off from the others or without room on its
disk while a leaf stores."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from agent.contract import FLEET_BUCKET, Committed, committed_subject
from agent.demo.plan import HubMachine
from agent.jetstream import JetStream, JetStreamError
from tests.faults.report import Case
from tests.faults.schedule import seed_of
from tests.faults.tools import disk, partition
from tests.harness.fleet import ids_in
from tests.harness.hub_machines import HubMachines, Place, connected_to, hubs_and_leaf
from tests.harness.registrar import LAKE, LeafHand
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until, wait_for

ROUNDS = 9
_STOPPED_SECONDS = 5.0
TAKEOVER_SECONDS = 57.0
"""A lease's three seconds, and twice nine for each of three groups of servers (meta, bucket and aggregate):
nine are the longest that a server of 2.15.1 waits before it stands for election, twice where votes split."""
_EVERY = 0.05
FULL_ROUNDS = 2
_NO_ROOM = b"no space left"


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
        await judge(case, hubs, leaf)


async def stop_where_full(case: Case, hubs: HubMachines, disks: Mapping[str, disk.SmallDisk]) -> None:
    """Fill the disk of the machine that leads and stop its agent, until another one leads."""
    first = await asyncio.to_thread(hubs.leader)
    agent = hubs.agents[first]
    assert agent.process is not None
    log = agent.member.state / "nats" / "nats-server.log"
    begin = log.stat().st_size
    disks[first].fill()
    await until(lambda: _NO_ROOM in log.read_bytes()[begin:], "its server finds no room")
    case.saw(f"the server of {first} finds no room")
    agent.process.send_signal(signal.SIGSTOP)
    second = await asyncio.to_thread(hubs.leader, first, TAKEOVER_SECONDS)
    case.saw(f"{second} leads instead of {first}, which is stopped")
    disks[first].free()
    agent.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(wait_for, lambda: "standby" in agent.status(), "it stands by")


async def judge(case: Case, hubs: HubMachines, leaf: LeafHand) -> None:
    """All that the leaf stored is at the hub, each message once."""
    registrar = await connected_to(hubs, "registrar", await asyncio.to_thread(hubs.leader))
    js = JetStream(registrar)

    found: list[str] = []

    async def all_there() -> bool:
        try:  # servers that meet again elect leaders, and meanwhile none answers
            if (await js.stream_info(AGGREGATE)).messages < leaf.sent:
                return False
            (found[:],) = (await ids_in(js, AGGREGATE)).values()
        except JetStreamError:
            return False
        return True

    await until(all_there, "all that was stored is at the hub")
    case.sent = case.acknowledged = leaf.sent
    case.lost, case.duplicates = leaf.sent - len(set(found)), len(found) - len(set(found))
    assert (case.lost, case.duplicates) == (0, 0)
    await registrar.close()


async def led_elsewhere(js: JetStream, name: str) -> bool:
    """Whether other servers than this one lead the streams that a takeover needs."""
    for stream in (AGGREGATE, f"KV_{FLEET_BUCKET}"):
        info = await js.api(f"STREAM.INFO.{stream}")
        if info["cluster"].get("leader") in (None, "", name):
            return False
    return True


@pytest.mark.skipif(partition.missing() is not None, reason=str(partition.missing()))
async def test_the_leading_machine_of_a_hub_is_cut_off_from_the_two_others(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "another machine leads, the one that is cut off changes nothing; each message once"
    with partition.switch() as switch:
        async with hubs_and_leaf(tmp_path, switch.place) as (hubs, leaf):
            first = await asyncio.to_thread(hubs.leader)
            agent = hubs.agents[first]
            jobs = await connected_to(hubs, "jobs", first)
            js = JetStream(jobs)
            registrar = await connected_to(hubs, "registrar", first)
            looking = JetStream(registrar)
            await until(lambda: led_elsewhere(looking, first), "other servers lead the streams")
            await registrar.close()
            await leaf.store(20)

            async def arrived() -> bool:
                return (await js.stream_info(AGGREGATE)).messages >= leaf.sent

            await until(arrived, "the messages are at the hub")
            created = (await js.stream_info(AGGREGATE)).created
            request = Committed(AGGREGATE, created, 20, lake=LAKE).encode()
            over = asyncio.Event()
            storing = asyncio.create_task(store(leaf, over))
            case.begins()
            switch.unplug(first)
            second = await asyncio.to_thread(hubs.leader, first, TAKEOVER_SECONDS)
            case.detect_seconds = case.saw(f"{second} leads instead of {first}, which is cut off")
            # It reaches the agent that led, and no other.
            await jobs.publish(committed_subject(AGGREGATE), request)
            await jobs.flush()
            await until(
                lambda: agent.metric("petiole_hub_leading") == 0, "the first does not lead", TAKEOVER_SECONDS
            )
            case.saw(f"{first} knows that it does not lead")
            assert hubs.leading(first) == [second]
            switch.plug_in(first)
            case.begins()

            def stands_by() -> bool:
                # Servers that meet again elect leaders; on a busy machine a third agent may lead by then.
                said = [f"standby: {name} leads the hub" for name in hubs.leading(first)]
                return agent.status().get("standby") in said

            await asyncio.to_thread(wait_for, stands_by, "the first stands by")
            over.set()
            await storing
            await judge(case, hubs, leaf)
            case.recover_seconds = case.saw("all that was stored is at the hub")
            assert "committed messages purged" not in agent.log.read_text()
            assert (await js.stream_info(AGGREGATE)).first == 1
            # The same request does purge when it reaches one that leads.
            reply = await jobs.request(committed_subject(AGGREGATE), request, timeout=10)
            assert json.loads(reply.data)["purged"] == 20
            await jobs.close()


@pytest.mark.skipif(disk.missing() is not None, reason=str(disk.missing()))
@pytest.mark.timeout(600)
async def test_the_leading_machine_of_a_hub_is_stopped_when_its_disk_is_full(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "another machine leads, the first stands by once there is room; each message once"
    disks: dict[str, disk.SmallDisk] = {}
    with ExitStack() as stack:

        def on_a_small_disk(machine: HubMachine) -> Place:
            store = machine.member.state / "nats" / "store"
            disks[machine.member.domain] = stack.enter_context(disk.small_disk(store, 64))
            return Place()

        async with hubs_and_leaf(tmp_path, on_a_small_disk) as (hubs, leaf):
            over = asyncio.Event()
            storing = asyncio.create_task(store(leaf, over))
            for _ in range(FULL_ROUNDS):
                await stop_where_full(case, hubs, disks)
            over.set()
            await storing
            await judge(case, hubs, leaf)
