"""After a power cut of the hub its disk has the commands of one moment and the counts of a leaf's consumer of
another, for nats-server writes each on its own. No command that the hub holds is passed over."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.contract import COMMANDS, command_consumer
from tests.e2e.test_command_mirror import DOMAIN, Commands, running
from tests.harness.servers import ServerPair, open_server_pair
from tests.harness.wait import until

MESSAGES, COUNTS = "msgs", f"obs/{command_consumer(DOMAIN)}"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[ServerPair]:
    async with open_server_pair(tmp_path, DOMAIN) as made:
        yield made


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
        shutil.copytree(store(servers) / COUNTS, tmp_path / "counts")
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
        shutil.copytree(store(servers) / MESSAGES, tmp_path / "messages")
        await commands.send(4)
        await commands.arrived()
        await power_cut(commands, MESSAGES, tmp_path / "messages")
        await commands.send(new)
        commands.sent = [*held, *commands.sent[-new:]]
        await commands.arrived()
        assert one.state().command_epoch != epoch, "the mirror is recreated"
