"""Commands to a leaf whose link rests reach it once, and soon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from agent.config import LinkConfig
from agent.contract import (
    COMMANDS,
    Announce,
    CommandsWanted,
    command_consumer,
    command_deliver,
    leaf_stream,
    new_epoch,
    new_run,
)
from agent.hub.registrar.command_consumers import CommandConsumers, CommandStream
from agent.hub.registrar.problems import ActiveProblems
from agent.jetstream import JetStream, JetStreamError, UnavailableError
from agent.leaf.link.command_mirror import rest
from agent.leaf.link.status import LinkState
from tests.harness.agents import leaf_config
from tests.harness.idle_link import idle_pair, soon_idle
from tests.harness.linked_pair import QUICK, LinkedPair, open_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import SERVER_RETRY_SECONDS, until

__all__ = ["soon_idle"]

SOON = 40.0
"""Much less than the two minutes after which a mirror that does not listen may ask for its consumer."""


class Commands:
    """Commands to the leaf of a pair whose link rests."""

    def __init__(self, pair: LinkedPair) -> None:
        self._pair = pair
        self.sent: list[int] = []

    async def rest(self) -> None:
        """Return once the hub has no consumer for the leaf."""

        async def dropped() -> bool:
            return await self._pair.hub.js.find_consumer(COMMANDS, command_consumer("edge-1")) is None

        await until(dropped, "the hub's consumer is gone")

    async def send(self, count: int = 1) -> None:
        """Store commands at the hub, and one for another leaf before each."""
        for _ in range(count):
            await self._pair.hub.js.publish("cmd.edge-2.tool.ping", b"{}")
            self.sent.append(await self._pair.hub.js.publish("cmd.edge-1.tool.ping", b"{}"))

    async def arrived(self, seconds: float = SOON) -> None:
        """All of them are on the leaf."""

        async def reached() -> bool:
            try:
                return [await self._is_here(seq) for seq in self.sent] == [True] * len(self.sent)
            except JetStreamError:
                return False

        await until(reached, "the commands are here", seconds)

    async def _is_here(self, seq: int) -> bool:
        return await self._pair.probe.js.get_message(COMMANDS, seq=seq) is not None


@pytest.mark.parametrize("profile", ["normal", "thin"])
async def test_commands_reach_a_leaf_whose_consumer_rests_soon(
    servers: ServerPair, tmp_path: Path, profile: Literal["normal", "thin"]
) -> None:
    async with idle_pair(servers, tmp_path, profile) as pair:
        commands = Commands(pair)
        for count in (1, 3, 2):
            await commands.rest()
            await commands.send(count)
            await commands.arrived()
        await commands.rest()
        await until(lambda: pair.agent.leaf.link.mirror_rows()[0]["up"], "a mirror at rest counts as up")


async def test_commands_reach_a_leaf_at_rest_whose_agent_is_dead_and_whose_registrar_was_restarted(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands = Commands(pair)
        await commands.rest()
        await pair.stop_registrar()
        await commands.send()
        await pair.start_registrar()
        await commands.arrived()
        await commands.rest()
        await pair.agent.crash()
        await commands.send(2)
        await commands.arrived()


async def test_a_command_that_is_lost_with_a_link_that_hangs_comes_over_the_next_one(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, hub = Commands(pair), pair.hub.js
        await commands.send(1)
        await commands.arrived()
        await commands.rest()
        servers.leaf.proxy.stall()
        await commands.send(1)

        async def delivered() -> bool:
            found = await hub.find_consumer(COMMANDS, command_consumer("edge-1"))
            return found is not None and found.deliveries == 1

        await until(delivered, "the hub has sent the command into a link that hangs")
        servers.leaf.proxy.cut()
        servers.leaf.proxy.restore()
        await commands.arrived(SERVER_RETRY_SECONDS)
        await commands.send(2)
        await commands.arrived()


async def test_commands_reach_a_leaf_at_rest_after_the_server_of_either_side_was_killed(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands = Commands(pair)
        for server in (servers.hub, servers.leaf):
            await commands.rest()
            await server.kill()
            await server.start()
            await until(lambda: pair.agent.leaf.link.controller.answered, "the hub answers")
            await until(lambda: pair.hub.nc.is_connected, "the hub's server answers")
            await commands.send(2)
            await commands.arrived(SERVER_RETRY_SECONDS)


async def test_a_mirror_that_is_recreated_during_its_rest_finds_its_consumer_at_the_hub(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it asks for it ever more rarely, and the next command waits for that."""
    async with idle_pair(servers, tmp_path) as pair:
        commands, epoch, ask = Commands(pair), pair.agent.state().command_epoch, JetStream.api
        delivers: list[str | None] = []

        async def api(self: JetStream, subject: str, *args: Any, **how: Any) -> dict[str, Any]:
            if subject == f"STREAM.CREATE.{COMMANDS}":
                found = await pair.hub.js.find_consumer(COMMANDS, command_consumer("edge-1"))
                delivers.append(None if found is None else found.config["deliver_subject"])
            return await ask(self, subject, *args, **how)

        await commands.rest()
        monkeypatch.setattr(JetStream, "api", api)
        await pair.probe.js.api(f"STREAM.DELETE.{COMMANDS}")
        await until(lambda: bool(delivers), "the mirror is created again")
        now = pair.agent.state().command_epoch
        assert now not in (None, epoch)
        assert delivers == [command_deliver("edge-1", str(now))]
        await commands.send()
        await commands.arrived()
        await commands.rest()


async def test_the_mirror_takes_nothing_but_commands_from_the_consumer_that_resets_it(
    servers: ServerPair, tmp_path: Path
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, leaf = Commands(pair), pair.probe.js
        await pair.hub.js.publish("cmd.edge-2.tool.ping", b"{}")
        for _ in range(3):
            await commands.rest()
            await commands.send(1)
            await commands.arrived()
            # The message that the resetter delivers would then be the mirror's next one by its sequence.
            while (await leaf.stream_info(leaf_stream("edge-1", "normal"))).last <= commands.sent[-1]:
                await pair.send(1)
        await commands.rest()
        mirror = await leaf.stream_info(COMMANDS)
        assert (mirror.messages, mirror.last) == (len(commands.sent), commands.sent[-1])
        await commands.send(1)
        await commands.arrived()


async def test_what_resets_the_mirror_is_gone_after_an_agent_that_was_stopped_meanwhile(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "_HEARD", 600.0)
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
    stream = leaf_stream("edge-1", "normal")
    async with open_pair(LinkedPair, servers, config, LinkState.FLOWING) as pair:

        async def is_there() -> bool:
            return rest.RESETTER in await pair.probe.js.consumer_names(stream)

        async def is_gone() -> bool:
            return not await is_there()

        await until(is_there, "the mirror is being reset")
        await pair.agent.stop()
        assert await is_there()
        monkeypatch.setattr(LinkConfig, "rest_seconds", lambda *_: None)
        await pair.start_agent()
        await until(is_gone, "the next agent has deleted it")


async def test_the_consumer_that_keeps_the_mirror_awake_goes_though_the_first_request_fails(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_pair(servers, tmp_path) as pair:
        commands, deleted, failures = Commands(pair), JetStream.delete_consumer, 0
        leaf = JetStream(await servers.leaf.connect("agent"))
        await commands.rest()

        async def delete(self: JetStream, stream: str, name: str) -> bool:
            nonlocal failures
            if name == rest.LISTENER and not failures:
                failures += 1
                raise UnavailableError("no answer")
            return await deleted(self, stream, name)

        async def is_gone() -> bool:
            names = [info.name async for info in leaf.consumers(COMMANDS)]
            return failures > 0 and rest.LISTENER not in names

        monkeypatch.setattr(rest, "SETTLE_SECONDS", 600.0)  # it is made again no sooner
        monkeypatch.setattr(JetStream, "delete_consumer", delete)
        await commands.send()
        await commands.arrived()
        await until(is_gone, "the consumer is deleted")


async def test_a_command_does_not_bring_back_the_consumer_of_an_epoch_that_ends_meanwhile(
    servers: ServerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands would go under the old subject, which nobody follows, until the next announcement."""
    js = JetStream(await servers.hub.connect("registrar"))
    stream = CommandStream(js)
    consumers = CommandConsumers(js, stream, ActiveProblems())
    old, new = new_epoch(), new_epoch()

    async def announce(epoch: str, *, idle: bool) -> None:
        wanted = CommandsWanted(epoch, 0, idle=idle)
        announced = Announce("edge-1", "m", new_run(), {}, {}, commands=wanted)
        assert await consumers.answer(announced) is not None

    await announce(old, idle=True)
    await js.publish("cmd.edge-1.tool.ping", b"{}")
    announcing: list[asyncio.Task[None]] = []
    newest = stream.newest

    async def announces_meanwhile(domain: str) -> int:
        if not announcing:
            announcing.append(asyncio.create_task(announce(new, idle=False)))
            await asyncio.wait(announcing, timeout=1.0)
        return await newest(domain)

    monkeypatch.setattr(stream, "newest", announces_meanwhile)
    await consumers._wake("edge-1")
    await announcing[0]
    found = await js.find_consumer(COMMANDS, command_consumer("edge-1"))
    assert found is not None
    assert found.config["deliver_subject"] == command_deliver("edge-1", new)
