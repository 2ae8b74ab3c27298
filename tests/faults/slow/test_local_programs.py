"""A local program is handed each command once as long as it acknowledges it, whatever happens to the link,
the hub, the leaf's server and the agent, and however often the mirror has to be recreated."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.contract import Command, command_subject, command_subjects, new_epoch, parse_command
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.state_file import StateFile, load
from tests.e2e.test_command_places import open_leaf
from tests.faults.report import Case
from tests.faults.schedule import seed_of
from tests.harness.agents import leaf_config
from tests.harness.commands import APP, Program, working
from tests.harness.leaf_process import LeafProcess
from tests.harness.registrar import HubHand, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import PatientJetStream
from tests.harness.wait import until

DOMAIN = "edge-1"
WAIT_SECONDS = 120.0


class Site:
    """A hub and a leaf with a program, and an agent as a process that can be killed."""

    def __init__(self, servers: ServerPair, hub: HubHand, directory: Path) -> None:
        self.servers, self.hub, self.state = servers, hub, directory / "agent"
        self._copy = directory / "copy"
        self._sender = PatientJetStream(hub.nc)
        self.sent: list[str] = []
        self.process: LeafProcess | None = None

    async def start_agent(self) -> None:
        self.state.mkdir(exist_ok=True)
        self.process = await LeafProcess.launch(leaf_config(self.servers.leaf, self.state))

    async def kill_agent(self) -> None:
        assert self.process is not None
        await self.process.kill()

    async def replace_mirror(self) -> None:
        """The agent is killed, and finds a mirror that is not of its state file when it starts."""
        await self.kill_agent()
        path = self.state / "state.json"
        file = StateFile(path, load(path, DOMAIN))
        file.current.command_epoch = new_epoch()
        await file.save()
        await self.start_agent()

    async def copy_hub(self) -> None:
        """The hub is stopped for a moment and its store copied."""
        shutil.rmtree(self._copy, ignore_errors=True)
        await self.servers.hub.back_up(self._copy)

    async def restore_hub(self) -> None:
        """The hub is killed and goes on from the newest copy."""
        await self.servers.hub.restore(self._copy)

    async def send(self) -> None:
        command = Command(f"c-{len(self.sent)}")
        self.sent.append(command.id)
        for domain in (DOMAIN, "edge-2"):
            await self._sender.publish(command_subject(domain, APP, "go"), command.encode())

    async def taken(self, program: Program, idents: Iterable[str]) -> None:
        """Return when the program was handed all of these and the leaf's server waits for no acknowledgement.
        The answer to one may be lost, with the server or on a busy machine: then the program does not know
        that it counts, and is not handed the command again."""
        js = JetStream(await self.servers.leaf.connect("agent"))

        async def is_taken() -> bool:
            try:
                info = await js.consumer_info("COMMANDS", APP)
            except JetStreamError:  # the mirror is being recreated, or its server started
                return False
            return set(idents) <= set(program.handed) and not (info.pending or info.ack_pending)

        await until(is_taken, "all are handed out and acknowledged", WAIT_SECONDS)

    async def held(self) -> list[str]:
        """The ids that the hub's stream holds for the leaf."""
        found: list[str] = []
        seq = 1
        subject = command_subjects(DOMAIN)
        while message := await self._sender.get_message("COMMANDS", seq=seq, next_by_subject=subject):
            found.append(parse_command(message.data).id)
            seq = message.seq + 1
        return found


@asynccontextmanager
async def open_site(directory: Path) -> AsyncIterator[tuple[Site, Program]]:
    async with open_server_pair(directory, DOMAIN) as servers:
        leaf = servers.leaf
        await leaf.start_with(apps=(APP,))
        hub = await hub_of(servers)
        async with hub.registrar(), working(await leaf.connect("device")) as program:
            site = Site(servers, hub, directory)
            await site.start_agent()
            try:
                await site.send()
                await site.taken(program, site.sent)
                yield site, program
            finally:
                await site.kill_agent()


async def faults(
    chance: random.Random, several: Sequence[Callable[[], Awaitable[None]]], enough: asyncio.Event
) -> None:
    """One fault after the other, each of them mended, until it is `enough`."""
    while not enough.is_set():
        await asyncio.sleep(chance.uniform(1.0, 6.0))
        await chance.choice(several)()


def written_at(site: Site) -> float:
    """When the leaf's server last wrote down what the program has acknowledged (monotonic seconds). It
    does so some ten times a second, but syncs each time, for which a busy disk may take seconds."""
    files = site.servers.leaf.config.store_dir.glob(f"jetstream/*/streams/COMMANDS/obs/{APP}/o.dat")
    ages = [time.time() - path.stat().st_mtime for path in files]
    return time.monotonic() - min(ages, default=0.0)


async def send_all(site: Site, chance: random.Random, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        await site.send()


@pytest.mark.timeout(900)
async def test_a_local_program_gets_each_command_once_whatever_is_cut_or_killed(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "200 commands at random moments, each of them handed out and none again once acknowledged"
    case.seed = seed_of(os.environ)
    chance = random.Random(case.seed)
    async with open_site(tmp_path) as (site, program):
        struck: Counter[str] = Counter()
        servers, kills = site.servers, list[tuple[float, float]]()

        async def cut() -> None:
            struck["link cut"] += 1
            servers.leaf.proxy.cut()
            await asyncio.sleep(chance.uniform(0.1, 4.0))
            servers.leaf.proxy.restore()

        async def kill_hub() -> None:
            struck["hub killed"] += 1
            await servers.hub.kill()
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await servers.hub.start()

        async def kill_leaf() -> None:
            struck["leaf's server killed"] += 1
            begun = time.monotonic()
            await servers.leaf.kill()
            kills.append((min(begun, written_at(site)) - 2.0, time.monotonic()))
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await servers.leaf.start()

        async def kill_agent() -> None:
            struck["agent killed"] += 1
            await site.kill_agent()
            await site.start_agent()

        async def replace() -> None:
            struck["mirror recreated"] += 1
            await site.replace_mirror()
            if chance.random() < 0.7:
                await asyncio.sleep(chance.uniform(1.0, 3.0))
                struck["agent killed meanwhile"] += 1
                await site.kill_agent()
                await site.start_agent()

        case.begins()
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            several = [cut, kill_hub, kill_leaf, kill_agent, replace]
            group.create_task(faults(chance, several, enough))
            await send_all(site, chance, 200)
            enough.set()
        await site.taken(program, site.sent)
        case.saw("the program has acknowledged all")
    case.seen.append(", ".join(f"{what} {count} times" for what, count in sorted(struck.items())))
    case.seen.append(f"{len(site.sent)} commands, handed out {len(program.handed)} times")
    last = [
        ident
        for ident, (taken, acknowledged) in program.again.items()
        if any(begun < acknowledged and taken < ended for begun, ended in kills)
    ]
    case.not_proven.append(
        "acknowledged when the leaf's server was killed, or since the two seconds before it wrote down what "
        f"the program had acknowledged: {last}"
    )
    assert [one for one in program.again if one not in last] == []
    assert list(dict.fromkeys(program.handed)) == site.sent


@pytest.mark.timeout(900)
async def test_a_local_program_gets_each_command_once_from_a_hub_restored_over_and_over(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "what the hub holds in the end was handed out, and nothing again once acknowledged"
    case.seed = seed_of(os.environ)
    chance = random.Random(case.seed)
    async with open_site(tmp_path) as (site, program):
        case.begins()
        for _ in range(6):
            await send_all(site, chance, chance.randint(1, 10))
            await site.copy_hub()
            await send_all(site, chance, chance.randint(1, 10))
            cut = chance.random() < 0.5
            if cut:
                site.servers.leaf.proxy.cut()
            await site.restore_hub()
            await send_all(site, chance, chance.randint(0, 12))
            site.servers.leaf.proxy.restore()
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0.0, 3.0))
                await site.kill_agent()
                await site.start_agent()
        await site.send()
        held = await site.held()
        await site.taken(program, held)
        case.saw("the program has acknowledged all that the hub holds")
    case.seen.append(f"{len(site.sent)} commands, {len(held)} at the hub, {len(program.handed)} handed out")
    assert program.again == {}


@pytest.mark.timeout(300)
async def test_a_local_program_gets_two_commands_a_second_once_on_a_healthy_link(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "240 commands in 120 s, each handed out once, and no new epoch"
    async with open_site(tmp_path) as (site, program):
        epoch = load(site.state / "state.json", DOMAIN).command_epoch
        case.begins()
        for _ in range(240):
            await site.send()
            await asyncio.sleep(0.5)
        await program.got(site.sent)
        case.saw("all are acknowledged")
        assert len(program.handed) == len(site.sent)
        assert load(site.state / "state.json", DOMAIN).command_epoch == epoch


@pytest.mark.timeout(900)
async def test_an_agent_killed_after_any_request_of_a_recreation_hands_no_command_out_again(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "killed after the first request, the second, and so on: each command handed out once"
    async with open_leaf(tmp_path) as leaf, working(await leaf.servers.leaf.connect("device")) as program:
        await program.got(await leaf.send(3))
        await leaf.step()
        case.begins()
        count = survived = 0
        while not survived:
            count += 1
            left = count

            def dies(verb: str) -> bool:
                nonlocal left
                left -= 1
                return left == 0

            kills = leaf.kills
            await leaf.replace(dies)
            await leaf.send(1)
            await leaf.kept()
            await program.got(leaf.sent)
            survived = leaf.kills == kills
        case.saw(f"{count - 1} requests, killed after each of them")
    assert len(program.handed) == len(leaf.sent)
    assert count > 15
