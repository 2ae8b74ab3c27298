"""A hub of fifty links whose store is replaced by an older copy while its leaves go on."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

from agent.contract import aggregate
from tests.faults.report import Case
from tests.harness.fleet import Member, ids_in
from tests.harness.registrar import HubHand, hub_of
from tests.harness.servers import open_server_pair
from tests.harness.wait import until

LEAVES = [f"edge-{number}" for number in range(1, 6)]
CLASSES = [f"c{number}" for number in range(10)]
AGGREGATES = tuple(aggregate(number) for number in range(3))


async def test_every_leaf_of_a_hub_that_was_put_back_begins_a_new_epoch_and_nothing_is_lost(
    tmp_path: Path, case: Case
) -> None:
    case.expected = (
        "the checkpoint of each of 50 links shows it; after new epochs the hub holds every message"
    )
    case.not_proven = ["50 leaf servers: these are 5 with 10 classes each, their keepers done by hand"]
    async with open_server_pair(tmp_path, *LEAVES, classes=tuple(CLASSES), aggregates=AGGREGATES) as servers:
        hub = await hub_of(servers)
        members = [await Member.make(leaf, CLASSES) for leaf in servers.leaves.values()]
        store, copy = servers.hub.config.store_dir, tmp_path / "copy"
        async with hub.registrar(max_sources=20):
            await stored(members)
            await until(partial(settled, members), "all is held and agreed")
            await servers.hub.kill()
            shutil.copytree(store, copy)
            await servers.hub.start()
            await stored(members)
            await until(partial(settled, members), "more is held and agreed", seconds=40)
            await servers.hub.kill()
            shutil.rmtree(store)
            copy.rename(store)
            case.begins()
            await servers.hub.start()
            await stored(members)  # nobody paused: what flows now makes every cursor look well
            repaired = sum([await one.repair(await one.announce()) for one in members])
            case.detect_seconds = case.saw(f"{repaired} links begin a new epoch")
            assert repaired == len(LEAVES) * len(CLASSES)
            await until(partial(settled, members), "all is held and agreed again", seconds=60)
            case.recover_seconds = case.saw("all is held and agreed again")
            found = await held(hub)
        wanted = {name for one in members for name in one.ids()}
        case.sent = case.acknowledged = len(wanted)
        case.lost = len(wanted - set(found))
        case.saw(f"{len(found) - len(set(found))} messages stand twice in the hub's streams, which jobs drop")
        assert case.lost == 0


async def stored(members: list[Member]) -> None:
    """Five messages in each class of each leaf."""
    await asyncio.gather(*(one.store(5) for one in members))


async def settled(members: list[Member]) -> bool:
    """Whether the hub tells every leaf that it holds all of it, and both agree on a checkpoint there."""
    for one in members:
        answer = (await one.announce()).classes
        for cls, probe in one.shelves.items():
            checkpoint = probe.checkpoint
            if answer[cls].cursor != probe.stored or answer[cls].agreed is False:
                return False
            if checkpoint is None or checkpoint.leaf_seq != probe.stored:
                return False
    return True


async def held(hub: HubHand) -> list[str]:
    """The ids of all messages at the hub."""
    streams = [await ids_in(hub.js, stream) for stream in AGGREGATES]
    return [name for one in streams for names in one.values() for name in names]
