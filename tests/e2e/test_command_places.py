"""A local program is handed no command that it has acknowledged, however its mirror is recreated."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NoAnswerError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from agent.contract import (
    COMMANDS,
    Command,
    command_consumer,
    command_subject,
    new_epoch,
    parse_command,
)
from agent.jetstream import ConsumerInfo, JetStream
from agent.leaf.link.command_mirror import mirror_requests
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.link.command_mirror.positions import HELD_UNTIL, is_held, is_leaving, kept_config
from agent.leaf.state_file import StateFile, load
from tests.harness.commands import APP, Program, waking_mirror, working
from tests.harness.registrar import HubHand, LeafHand, hub_of
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.streams import PatientJetStream
from tests.harness.wait import WAIT_SECONDS, until

DOMAIN = "edge-1"
OWN_CONSUMER = ConsumerConfig(
    name=APP, durable_name=APP, filter_subject=f"cmd.{DOMAIN}.{APP}.>", ack_policy=AckPolicy.EXPLICIT
)
"""What the program creates."""


class KilledError(Exception):
    """The agent ends here as if by SIGKILL."""


class Mortal(JetStream):
    """The agent's JetStream; `dies` says after which request the agent is killed."""

    dies: Callable[[str], bool] | None = None

    async def api(
        self, verb: str, request: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """The answer, which nobody lives to see after the last request."""
        answer = await super().api(verb, request, timeout)
        if self.dies is not None and self.dies(verb):
            raise KilledError(verb)
        return answer


class Leaf:
    """A leaf whose mirror is kept by hand: it looks and announces when a test says so."""

    def __init__(
        self, servers: ServerPair, hub: HubHand, hand: LeafHand, nc: Client, directory: Path
    ) -> None:
        self.servers, self.hub, self._hand, self.directory = servers, hub, hand, directory
        self.sent: list[str] = []
        self.kills = 0
        self.js = JetStream(nc)
        self._nc, self._sender = nc, PatientJetStream(hub.nc)
        self.restart()

    def restart(self, dies: Callable[[str], bool] | None = None) -> None:
        """The part of an agent that keeps the mirror, as it starts from its files."""
        path = self.directory / "state.json"
        self.state = StateFile(path, load(path, DOMAIN))
        programs = ProgramPositions(self.directory / "command-places.json", DOMAIN)
        programs.load()
        self.mirror = waking_mirror(DOMAIN, self.state, programs)
        js = Mortal(self._nc)
        js.dies = dies
        self.session = self.mirror.connected(self._nc, js)
        self.session.__enter__()

    async def replace(self, dies: Callable[[str], bool] | None = None) -> None:
        """Let the mirror be recreated over a hub that is well: the state file is that of a backup, so the
        mirror is of another epoch."""
        self.state.current.command_epoch = new_epoch()
        await self.state.save()
        self.restart(dies)

    async def step(self) -> None:
        """Announce, and look."""
        wanted = await self.mirror.wanted()
        if wanted is not None:
            announce = dataclasses.replace(await self._hand.announcement(), commands=wanted)
            try:
                answer = await self._hand.say(announce.encode())
            except NatsError:
                self.mirror.answered(wanted, None)
            else:
                self.mirror.answered(wanted, answer.commands)
        await self.mirror.look()

    async def steps(self) -> NoReturn:
        """Announce and look until the agent is killed."""
        while True:
            await asyncio.sleep(0.1)
            await self.step()

    async def kept(self) -> None:
        """Return when the mirror flows and no program waits for its place; agents are started again as they
        are killed."""

        async def well() -> bool:
            # The hub answers so many announcements and no more.
            await asyncio.sleep(0.1)
            try:
                await self.step()
            except KilledError:
                self.kills += 1
                self.restart()
                return False
            return self.mirror.status()["up"] and not await self.waits()

        await until(well, "the mirror flows, and programs with it")

    async def agreed(self, seq: int) -> bool:
        """Whether leaf and hub have compared what they hold up to a sequence."""
        await asyncio.sleep(0.1)
        await self.step()
        await self.state.save()
        return self.state.current.command_agreed is not None and self.state.current.command_agreed[0] == seq

    async def waits(self) -> bool:
        """Whether a program is handed nothing."""
        configs = [info.config async for info in self.js.consumers(COMMANDS)]
        return any(is_held(config) or is_leaving(config) for config in configs)

    async def after(self, info: ConsumerInfo) -> int | None:
        """The sequence of the first command that a consumer has not acknowledged."""
        subject = f"cmd.{DOMAIN}.>"
        message = await self.js.get_message(COMMANDS, seq=info.ack_floor + 1, next_by_subject=subject)
        return None if message is None else message.seq

    async def send(self, count: int, app: str = APP) -> list[str]:
        """Send commands; returns the ids of all that were sent to the app `plc`."""
        for _ in range(count):
            command = Command(f"c-{len(self.sent)}")
            for domain in (DOMAIN, "edge-2"):
                await self._sender.publish(command_subject(domain, app, "go"), command.encode())
            self.sent.append(command.id)
        return self.sent


@asynccontextmanager
async def open_leaf(directory: Path) -> AsyncIterator[Leaf]:
    """A leaf whose server lets the program `plc` read its commands, with its mirror."""
    async with open_server_pair(directory, DOMAIN) as servers:
        node = servers.leaf
        await node.start_with(apps=(APP,))
        await node.wait_linked()
        hub = await hub_of(servers)
        async with hub.registrar():
            one = Leaf(servers, hub, await LeafHand.make(node), await node.connect("agent"), directory)
            await one.kept()
            yield one


@pytest_asyncio.fixture
async def leaf(tmp_path: Path) -> AsyncIterator[Leaf]:
    async with open_leaf(tmp_path) as one:
        yield one


@pytest_asyncio.fixture
async def program(leaf: Leaf) -> AsyncIterator[Program]:
    """The program, which has acknowledged three commands; the agent has looked since."""
    async with working(await leaf.servers.leaf.connect("device")) as one:
        await one.got(await leaf.send(3))
        await leaf.step()
        yield one


async def test_a_mirror_that_was_deleted_by_hand_comes_back_with_its_consumers(
    leaf: Leaf, program: Program
) -> None:
    await leaf.hub.js.publish(command_subject(DOMAIN, "agent", "ping"), b"of the agent")
    await until(
        lambda: leaf.agreed(7), "the newest command that the hub was asked about is not the program's"
    )
    leaf.restart()
    await leaf.js.api(f"STREAM.DELETE.{COMMANDS}")
    await leaf.send(2)
    await leaf.kept()
    await program.got(leaf.sent)
    assert program.handed == leaf.sent


ENDS = ["STREAM.DELETE.", "STREAM.CREATE.", "CONSUMER.RESET."]
"""After each request that there is: tests/faults/slow/test_local_programs.py."""


@pytest.mark.parametrize("last", ENDS)
async def test_an_agent_that_is_killed_while_it_recreates_the_mirror_hands_no_command_out_again(
    leaf: Leaf, program: Program, last: str
) -> None:
    await leaf.replace(lambda verb: verb.startswith(last))
    await leaf.send(2)
    await leaf.kept()
    await program.got(leaf.sent)
    await program.got(await leaf.send(1))
    assert leaf.kills == 1


async def test_nothing_is_delivered_into_a_new_mirror_before_its_consumers_are_held(
    leaf: Leaf, program: Program
) -> None:
    await leaf.replace(lambda verb: verb.startswith("STREAM.CREATE."))
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(KilledError):
            await leaf.steps()
    mirror = (await leaf.js.stream_info(COMMANDS)).config["mirror"]
    delivers = await leaf.hub.js.consumer_info(COMMANDS, command_consumer(DOMAIN))
    assert delivers.config["deliver_subject"] != mirror["consumer"]["deliver_subject"]


async def test_a_program_that_creates_its_consumer_while_that_is_paused_is_handed_nothing_again(
    leaf: Leaf, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program does so at any moment, and lifts the pause if it is the same moment."""
    clients = [(await leaf.servers.leaf.connect("device")).jetstream(timeout=5) for _ in range(4)]
    pause, lifted = mirror_requests.pause, list[str]()

    async def pause_at_the_worst_moment(js: JetStream, name: str, until: str | None) -> None:
        while until == HELD_UNTIL and not lifted:
            creating = [asyncio.create_task(_made(client, OWN_CONSUMER)) for client in clients * 2]
            await asyncio.sleep(0)
            await pause(js, name, until)
            await asyncio.gather(*creating)
            if not (await js.consumer_info(COMMANDS, name)).pause_remaining:
                lifted.append(until)
                return
            await pause(js, name, None)
        await pause(js, name, until)

    monkeypatch.setattr(mirror_requests, "pause", pause_at_the_worst_moment)
    await leaf.replace()
    await leaf.kept()
    assert lifted
    await program.got(await leaf.send(2))
    assert program.handed == leaf.sent


async def test_a_command_in_work_while_the_mirror_is_recreated_comes_once_more(
    leaf: Leaf, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_requests, "SETTLE_SECONDS", 0.3)
    done = asyncio.Event()
    program.work = lambda command: done.wait()
    await leaf.send(1)
    await until(lambda: program.handed == leaf.sent, "the program works on it")
    await leaf.replace()
    await leaf.kept()
    done.set()
    await program.got(await leaf.send(2))
    assert Counter(program.handed) == Counter([*leaf.sent, "c-3"])


async def test_what_is_acknowledged_above_one_that_is_not_does_not_come_again(
    leaf: Leaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill of the leaf's server: an acknowledgement is lost, and the program goes on meanwhile."""
    monkeypatch.setattr(mirror_requests, "SETTLE_SECONDS", 0.3)
    await leaf.send(3)
    await leaf.kept()
    js = (await leaf.servers.leaf.connect("device")).jetstream(timeout=5)
    await until(lambda: _made(js, OWN_CONSUMER), "the mirror is there")
    commands = await js.pull_subscribe_bind(APP, stream=COMMANDS)
    _, second, third = await commands.fetch(3, timeout=30)
    await second.ack_sync()
    await third.ack_sync()
    await leaf.replace()
    await leaf.kept()
    await leaf.send(1)
    await leaf.kept()
    handed = [(await commands.fetch(1, timeout=WAIT_SECONDS))[0] for _ in range(2)]
    assert [parse_command(message.data).id for message in handed] == ["c-0", "c-3"]
    with pytest.raises(NoAnswerError):
        await commands.fetch(1, timeout=1)


async def _made(js: JetStreamContext, config: ConsumerConfig) -> bool:
    try:
        await js.add_consumer(COMMANDS, config)
    except NatsError:
        return False
    return True


async def test_an_acknowledgement_that_comes_in_time_is_waited_for(leaf: Leaf, program: Program) -> None:
    done = asyncio.Event()
    program.work = lambda command: done.wait()
    await leaf.send(1)
    await until(lambda: program.handed == leaf.sent, "the program works on it")
    await leaf.replace()
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf.kept())
        await until(leaf.waits, "nothing more is delivered, and the mirror waits")
        done.set()
    await program.got(await leaf.send(2))
    assert program.handed == leaf.sent


async def test_a_hub_restored_from_an_older_copy_hands_out_each_command_once(
    leaf: Leaf, program: Program, tmp_path: Path
) -> None:
    hub, copy = leaf.servers.hub, tmp_path / "copy"
    await hub.back_up(copy)
    await program.got(await leaf.send(4))
    await leaf.step()
    leaf.servers.leaf.proxy.cut()
    await hub.restore(copy)
    # Before either hears of the other, the hub is ahead of the mirror again, which takes the end of that.
    await leaf.send(6)
    leaf.servers.leaf.proxy.restore()
    await until(lambda: leaf.sent[-1] in program.acknowledged, "the mirror holds some of both")
    await leaf.state.save()
    leaf.restart()
    await leaf.kept()
    await program.got(leaf.sent, in_order=False)
    assert len(program.handed) == len(leaf.sent)
    epoch = leaf.state.current.command_epoch
    await leaf.send(1)
    await leaf.kept()
    assert leaf.state.current.command_epoch == epoch
    await leaf.replace()
    await leaf.send(1)
    await leaf.kept()
    await program.got(leaf.sent, in_order=False)
    assert len(program.handed) == len(leaf.sent)


async def test_commands_that_a_restored_hub_has_lost_are_read_first(leaf: Leaf, program: Program) -> None:
    gate = asyncio.Semaphore(1)
    program.work = lambda command: gate.acquire()
    await leaf.send(4)
    await until(lambda: len(program.handed) == 5, "the program works on the second of them")
    await leaf.hub.js.api(f"STREAM.PURGE.{COMMANDS}", {"filter": f"cmd.{DOMAIN}.>"})
    await leaf.replace()
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf.kept())
        await until(lambda: leaf.mirror.status()["state"].startswith("the mirror"), "it is to be recreated")
        for _ in range(10):
            gate.release()
    await program.got(await leaf.send(1))
    assert program.handed == leaf.sent


OWN: dict[str, dict[str, Any]] = {
    "several filters": {"filter_subjects": ["cmd.edge-1.plc.>", "cmd.edge-1.robot.>"]},
    "no filter": {},
    "named metadata": {"filter_subject": "cmd.edge-1.plc.>", "metadata": {"of": "plc"}, "max_deliver": 5},
    "all before acknowledged": {"filter_subject": "cmd.edge-1.plc.>", "ack_policy": "all"},
    "pushed": {"filter_subject": "cmd.edge-1.plc.>", "deliver_subject": "_INBOX_edge-1.push"},
    "paused by its owner": {"filter_subject": "cmd.edge-1.plc.>", "pause_until": "2199-01-01T00:00:00Z"},
    "from a sequence on": {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
}
NEWEST = {"deliver_policy": "new", "filter_subject": "cmd.edge-1.plc.>"}


async def test_durable_consumers_of_every_kind_come_back_as_they_were_made(leaf: Leaf) -> None:
    await leaf.send(2)
    await leaf.kept()
    made = {name.replace(" ", "-"): config for name, config in OWN.items()}
    for name, config in made.items():
        given = {"name": name, "durable_name": name, "ack_policy": "explicit", **config}
        await leaf.js.create_consumer(COMMANDS, given)
    given = {"name": "newest", "durable_name": "newest", "ack_policy": "explicit", **NEWEST}
    await leaf.js.create_consumer(COMMANDS, given)
    before = {info.name: info async for info in leaf.js.consumers(COMMANDS)}
    await leaf.replace()
    await leaf.kept()
    after = {info.name: info async for info in leaf.js.consumers(COMMANDS)}
    assert after.keys() == before.keys() == {*made, "newest"}
    for name in made:
        assert kept_config(after[name].config) == kept_config(before[name].config)
        assert await leaf.after(after[name]) == await leaf.after(before[name])
    assert after["newest"].ack_floor == before["newest"].ack_floor == 3
    assert after["newest"].config["deliver_policy"] == "by_start_sequence"


async def test_places_of_a_damaged_file_are_those_of_the_mirror(leaf: Leaf, program: Program) -> None:
    (leaf.directory / "command-places.json").write_bytes(b"{")
    await leaf.replace()
    await leaf.kept()
    await program.got(await leaf.send(1))
    assert program.handed == leaf.sent
