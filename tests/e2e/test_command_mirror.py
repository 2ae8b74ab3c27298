"""Commands reach the leaf's mirror once and in order, whatever happens to either side. After a power cut of
the hub its disk has the commands of one moment and the counts of a leaf's consumer of another, for
nats-server writes each on its own; no command that the hub holds is passed over."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.base.wait import loop_time
from agent.contract import (
    COMMANDS,
    COMMANDS_BYTES,
    DEFAULT_CLASS,
    CommandsHeld,
    CommandsWanted,
    command_consumer,
    leaf_stream,
    new_epoch,
)
from agent.jetstream import JetStream, JetStreamError
from agent.leaf.link.command_mirror import controller
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.leaf.link.command_mirror.decide import MISSED_ANSWERS
from agent.leaf.link.command_mirror.local_consumers import ProgramPositions
from agent.leaf.state_file import StateFile, load
from tests.harness.agents import Agent, agent, leaf_config
from tests.harness.commands import waking_mirror
from tests.harness.registrar import HubHand, LeafHand, hub_of
from tests.harness.servers import ServerPair, copy_running
from tests.harness.streams import make_mirror, stored_messages
from tests.harness.wait import until

SESSIONS = ExitStack()
"""Connections that last as long as the tests."""
DOMAIN = "edge-1"


class Commands:
    """Sends commands at the hub, and reads what the leaf's mirror holds."""

    def __init__(self, servers: ServerPair, hub: HubHand) -> None:
        self.servers = servers
        self.hub = hub
        self.sent: list[str] = []

    async def send(self, count: int) -> None:
        """Commands to this leaf, each followed by one to another."""
        for _ in range(count):
            text = f"command {len(self.sent)}"
            await self.hub.js.publish(f"cmd.{DOMAIN}.agent.ping", text.encode())
            await self.hub.js.publish("cmd.edge-2.agent.ping", b"of another leaf")
            self.sent.append(text)

    async def here(self) -> list[str]:
        """What the mirror holds, in its order; nothing where there is none, or it goes meanwhile."""
        try:
            return [one.data.decode() for one in await stored_messages(await self._leaf(), "COMMANDS")]
        except JetStreamError:
            return []

    async def arrived(self) -> None:
        """Return when the mirror holds what was sent."""

        async def reached() -> bool:
            return await self.here() == self.sent

        await until(reached, "the commands are in the mirror, each of them once and in order")

    async def _leaf(self) -> JetStream:
        if not hasattr(self, "_js"):
            self._js = JetStream(await self.servers.leaf.connect("agent"))
        return self._js


@asynccontextmanager
async def running(servers: ServerPair, state: Path) -> AsyncIterator[tuple[Commands, Agent]]:
    """A registrar and a leaf's agent, the mirror made."""
    hub = await hub_of(servers)
    async with hub.registrar(), agent(leaf_config(servers.leaf, state)) as one:
        commands = Commands(servers, hub)
        await commands.send(2)
        await commands.arrived()
        yield commands, one


def state_of(one: Agent) -> str:
    """The mirror's sentence."""
    return str(one.leaf.status()["links"][0]["state"])


async def test_commands_of_this_leaf_alone_are_mirrored_and_their_state_is_told(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with running(servers, tmp_path / "state") as (commands, one):
        await commands.send(50)
        await commands.arrived()
        await until(lambda: state_of(one).startswith("flowing"), "the mirror flows")
        assert one.value("petiole_link_up", link="COMMANDS") == 1
        assert one.state().command_epoch is not None


async def test_commands_survive_the_kill_of_either_server_and_a_cut(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with running(servers, tmp_path / "state") as (commands, one):
        epoch = one.state().command_epoch
        await servers.leaf.kill()
        await until(lambda: "server does not answer" in state_of(one), "the kill is told")
        assert one.value("petiole_link_up", link="COMMANDS") == 0
        await commands.send(3)
        await servers.leaf.start()
        await commands.arrived()
        servers.leaf.proxy.cut()
        await commands.send(3)
        servers.leaf.proxy.restore()
        await commands.arrived()
        await servers.hub.kill()
        await until(lambda: state_of(one).startswith("down"), "the cut is told")
        await servers.hub.start()
        await until(lambda: commands.hub.nc.is_connected, "the hub answers")
        await commands.send(3)
        await commands.arrived()
        assert one.state().command_epoch == epoch


async def test_a_consumer_that_was_deleted_by_hand_is_made_again(servers: ServerPair, hub: HubHand) -> None:
    async with hub.registrar():
        leaf, commands = await LeafHand.make(servers.leaf), Commands(servers, hub)
        epoch = new_epoch()
        await ask(leaf, CommandsWanted(epoch, 0))
        await make_mirror(leaf.nc, DOMAIN, epoch)
        await commands.send(3)
        await commands.arrived()
        await hub.js.delete_consumer("COMMANDS", command_consumer(DOMAIN))
        await commands.send(2)
        held = await ask(leaf, CommandsWanted(epoch, 5))
        assert (held.epoch, held.last, held.stream_last, held.behind) == (epoch, 9, 10, 5)
        await commands.arrived()


async def test_another_epoch_delivers_every_command_again(servers: ServerPair, hub: HubHand) -> None:
    async with hub.registrar():
        leaf, commands = await LeafHand.make(servers.leaf), Commands(servers, hub)
        for _ in range(2):
            epoch = new_epoch()
            await ask(leaf, CommandsWanted(epoch, 0))
            await make_mirror(leaf.nc, DOMAIN, epoch)
            await commands.send(3)
            await commands.arrived()
            await leaf.js.api("STREAM.DELETE.COMMANDS")


@asynccontextmanager
async def flowing_mirror(
    servers: ServerPair, hub: HubHand, directory: Path
) -> AsyncIterator[tuple[LeafHand, Commands, CommandMirror]]:
    """A mirror without an agent around it, which flows; at the end it is of the same epoch and holds each
    command that was sent once."""
    async with hub.registrar():
        leaf, commands = await LeafHand.make(servers.leaf), Commands(servers, hub)
        mirror, state = await lone_mirror(servers, directory)
        await mirror.look()
        for _ in range(2):
            await answered(mirror, leaf)
            await mirror.look()
        epoch = state.current.command_epoch
        yield leaf, commands, mirror
        assert (state.current.command_epoch, await commands.here()) == (epoch, commands.sent)


async def test_a_look_while_an_announcement_is_under_way_is_no_fault(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    async with flowing_mirror(servers, hub, tmp_path) as (leaf, commands, mirror):
        for _ in range(MISSED_ANSWERS + 1):
            await commands.send(2)
            await commands.arrived()
            await mirror.look()
            wanted = await mirror.wanted()
            assert wanted is not None
            held = await ask(leaf, wanted)
            await mirror.look()
            assert mirror.status()["up"], mirror.status()
            mirror.answered(wanted, held)
            await mirror.look()
            assert mirror.status()["up"], mirror.status()


async def test_a_command_between_look_and_answer_is_not_missed(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    async with flowing_mirror(servers, hub, tmp_path) as (leaf, commands, mirror):
        for _ in range(MISSED_ANSWERS + 1):
            await commands.send(1)
            await commands.arrived()
            assert (await answered(mirror, leaf)).last == 2 * len(commands.sent) - 1
            wanted = await mirror.wanted()
            assert wanted is not None
            await commands.send(1)
            await commands.arrived()
            # The acknowledgement of the flow, which takes a second, has come before the question.
            mirror.answered(wanted, replace(await ask(leaf, wanted), behind=0))
            await mirror.look()
            assert mirror.status()["up"], mirror.status()


async def test_the_hub_is_called_silent_only_after_it_was_asked(
    servers: ServerPair, hub: HubHand, tmp_path: Path
) -> None:
    async with flowing_mirror(servers, hub, tmp_path) as _:
        again, _ = await lone_mirror(servers, tmp_path)
        with capture_logs() as logs:
            await again.look()
            assert [log["log_level"] for log in logs if log["event"] == "link"] == ["info"], logs
            assert not again.status()["up"]
            again.answered(await again.wanted(), None)
            await again.look()
            assert [log["log_level"] for log in logs if log["event"] == "link"] == ["info", "warning"], logs


async def test_a_mirror_that_has_no_room_is_tried_seldom_and_made_once_there_is(
    servers: ServerPair, hub: HubHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try costs an epoch where local programs need their positions first."""
    room = 2**30
    await servers.leaf.start_with(max_file_store=room)
    await servers.leaf.wait_linked()
    async with hub.registrar():
        leaf = await LeafHand.make(servers.leaf)
        mirror, state = await lone_mirror(servers, tmp_path)
        await mirror.look()
        await answered(mirror, leaf)
        await mirror.look()
        await leaf.js.create_consumer(
            COMMANDS, {"name": "plc", "durable_name": "plc", "ack_policy": "explicit"}
        )
        await mirror.look()
        await leaf.js.api("STREAM.DELETE.COMMANDS")
        await _resize(leaf, room - COMMANDS_BYTES // 2)
        with monkeypatch.context() as at_once:
            at_once.setattr(controller, "EPOCH_EVERY", 0.0)
            await mirror.look()
        monkeypatch.setattr(controller, "EPOCH_EVERY", 3600.0)
        now = loop_time()
        monkeypatch.setattr(controller, "loop_time", lambda: now)
        epochs = set()
        with capture_logs() as logs:
            for _ in range(4):
                # While a try goes on, nothing is announced.
                if (wanted := await mirror.wanted()) is not None:
                    mirror.answered(wanted, await ask(leaf, wanted))
                await mirror.look()
                epochs.add(state.current.command_epoch)
        said = [log["state"] for log in logs if log["event"] == "link"]
        assert "insufficient storage" in said[-1], said
        assert len(said) == len(set(said)), said
        assert len(epochs) <= 2, "that of the mirror which is gone, and that of the only try"
        await _resize(leaf, 2**20)
        monkeypatch.setattr(controller, "EPOCH_EVERY", 0.0)
        monkeypatch.setattr(controller, "loop_time", lambda: now + 3600.0)
        await mirror.look()
        await answered(mirror, leaf)
        await mirror.look()
        assert (await leaf.js.stream_info(COMMANDS)).config["mirror"]
        await answered(mirror, leaf)
        await mirror.look()
        assert mirror.status()["up"], mirror.status()


async def _resize(leaf: LeafHand, max_bytes: int) -> None:
    """Let the stream of the leaf's only class have so many bytes, which its server sets aside."""
    stream = leaf_stream(DOMAIN, DEFAULT_CLASS)
    config = (await leaf.js.stream_info(stream)).config
    await leaf.js.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": max_bytes})


async def lone_mirror(servers: ServerPair, directory: Path) -> tuple[CommandMirror, StateFile]:
    """The keeper of the mirror without an agent around it: it looks and announces when the test says so."""
    path = directory / "state.json"
    state = StateFile(path, load(path, DOMAIN))
    programs = ProgramPositions(directory / "command-places.json", DOMAIN)
    mirror = waking_mirror(DOMAIN, state, programs)
    nc = await servers.leaf.connect("agent")
    SESSIONS.enter_context(mirror.connected(nc, JetStream(nc)))
    return mirror, state


async def answered(mirror: CommandMirror, leaf: LeafHand) -> CommandsWanted:
    """What the mirror announced, once it has the hub's answer to it."""
    wanted = await mirror.wanted()
    assert wanted is not None
    mirror.answered(wanted, await ask(leaf, wanted))
    return wanted


async def ask(leaf: LeafHand, wanted: CommandsWanted) -> CommandsHeld:
    """What the registrar holds for a leaf that announces its mirror."""
    answer = await leaf.say(replace(await leaf.announcement(), commands=wanted).encode())
    assert answer.commands is not None, answer.refused
    return answer.commands


MESSAGES, COUNTS = "msgs", f"obs/{command_consumer(DOMAIN)}"


async def power_cut(commands: Commands, part: str, copy: Path) -> None:
    """The hub's machine is back, with this part of the stream as it was copied."""
    servers, place = commands.servers, store(commands.servers) / part
    await servers.hub.kill()
    await asyncio.to_thread(shutil.rmtree, place)
    await asyncio.to_thread(shutil.copytree, copy, place)
    await servers.hub.start()
    await until(lambda: commands.hub.nc.is_connected, "the hub answers")


def store(servers: ServerPair) -> Path:
    """Where the hub's server has its commands."""
    return next(servers.hub.config.store_dir.rglob(f"streams/{COMMANDS}"))


async def test_a_consumer_that_is_behind_its_commands_passes_over_none(
    servers: ServerPair, tmp_path: Path
) -> None:
    """Its counts are of before the leaf asked for it again, so they begin elsewhere than those of now."""
    async with running(servers, tmp_path / "state") as (commands, one):
        epoch = one.state().command_epoch
        copy_running(store(servers) / COUNTS, tmp_path / "counts")
        servers.leaf.proxy.cut()
        await commands.send(3)
        servers.leaf.proxy.restore()
        await commands.arrived()
        await commands.send(2)
        await commands.arrived()
        await power_cut(commands, COUNTS, tmp_path / "counts")
        await commands.send(3)
        await commands.arrived()
        assert one.state().command_epoch == epoch


@pytest.mark.parametrize("new", [1, 4, 9])
async def test_a_consumer_that_is_ahead_of_its_commands_passes_over_none(
    servers: ServerPair, tmp_path: Path, new: int
) -> None:
    """New commands take the sequences of those that are lost: fewer, or more than the leaf has got."""
    async with running(servers, tmp_path / "state") as (commands, one):
        epoch, held = one.state().command_epoch, list(commands.sent)
        copy_running(store(servers) / MESSAGES, tmp_path / "messages")
        await commands.send(4)
        await commands.arrived()
        await power_cut(commands, MESSAGES, tmp_path / "messages")
        await commands.send(new)
        commands.sent = [*held, *commands.sent[-new:]]
        await commands.arrived()
        assert one.state().command_epoch != epoch, "the mirror is recreated"
