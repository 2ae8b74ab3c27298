"""Commands of a hub whose stream was recreated or restored, when the leaf's mirror took the end of that
history before anyone noticed: the agent runs each command once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.config import Config, Size, StreamClass
from agent.contract import COMMANDS
from agent.jetstream import JetStreamError
from agent.leaf.commands.handlers import AgentControls, CommandHandler, Reply, make_handlers
from agent.leaf.link.command_mirror.controller import CommandMirror
from agent.process import leaf as leaf_module
from tests.harness.agents import agent, leaf_config
from tests.harness.commands import Desk, open_desk
from tests.harness.servers import ServerPair
from tests.harness.wait import until

OLD, NEW = 5, 9


class Rings:
    """A verb `ring` that notes its calls; the call `stuck` does not return."""

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.stuck: int | None = None

    async def ring(self, args: Mapping[str, Any]) -> Reply:
        self.rung.append(args["n"])
        if args["n"] == self.stuck:
            await asyncio.Event().wait()
        return Reply("rung")

    def verbs(self, controls: AgentControls) -> dict[str, CommandHandler]:
        return make_handlers(controls) | {"ring": CommandHandler(self.ring)}


class Looks:
    """The agent's looks at its mirror, which wait while they are `held`."""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.allowed.set()


@pytest_asyncio.fixture
async def desk(servers: ServerPair) -> AsyncIterator[Desk]:
    """A hub that takes commands, and clients at both ends."""
    async with open_desk(servers) as one:
        yield one


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    one = Rings()
    monkeypatch.setattr(leaf_module, "make_handlers", one.verbs)
    return one


@pytest_asyncio.fixture
async def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The keeper of the mirror looks only when the test lets it."""
    one, look = Looks(), CommandMirror.look

    async def held(mirror: CommandMirror) -> None:
        await one.allowed.wait()
        await look(mirror)

    monkeypatch.setattr(CommandMirror, "look", held)
    return one


async def _ring(desk: Desk, numbers: range) -> None:
    for n in numbers:
        await desk.send("ring", n=n)


async def _recreate(desk: Desk) -> None:
    """Delete the hub's stream of commands; the registrar recreates it."""
    hub = desk.servers.hub
    await hub.stop()
    (stream,) = hub.config.store_dir.rglob(f"streams/{COMMANDS}")
    shutil.rmtree(stream)
    await hub.start()


async def _copied(desk: Desk, copy: Path) -> None:
    await desk.servers.hub.back_up(copy)
    await until(lambda: _stream_is_there(desk), "the hub takes commands")


async def _stream_is_there(desk: Desk) -> bool:
    try:
        await desk.hub.stream_info(COMMANDS)
    except JetStreamError:
        return False
    return True


def _config(desk: Desk, tmp_path: Path) -> Config:
    """An agent whose stream leaves room for the mirror."""
    stream = StreamClass(max_bytes=Size(2**28))
    return leaf_config(desk.servers.leaf, tmp_path / "agent", stream=stream)


@pytest.mark.parametrize("fault", ["recreated", "restored"])
async def test_what_a_mixed_mirror_did_not_take_is_run_once_it_is_recreated(
    desk: Desk, rings: Rings, looks: Looks, tmp_path: Path, fault: str
) -> None:
    copy, leaf = tmp_path / "copy", desk.servers.leaf
    async with agent(_config(desk, tmp_path)):
        await _ring(desk, range(2))
        await desk.answers(2)
        if fault == "restored":
            await _copied(desk, copy)
        await _ring(desk, range(2, OLD))
        await desk.answers(OLD)
        leaf.proxy.cut()
        await leaf.wait_linked(False)
        await (_recreate(desk) if fault == "recreated" else desk.servers.hub.restore(copy))
        await until(lambda: _stream_is_there(desk), "the hub takes commands")
        looks.allowed.clear()
        # These have sequences that the mirror holds already, and then some that it takes.
        await _ring(desk, range(OLD, OLD + NEW))
        leaf.proxy.restore()
        await until(lambda: OLD + NEW - 1 in rings.rung, "the mirror took the end of the new history")
        missing = set(range(OLD + NEW)) - set(rings.rung)
        assert missing, "the mirror dropped the beginning of the new history"
        rings.stuck = min(missing) + 1
        looks.allowed.set()
        await until(lambda: rings.stuck in rings.rung, "the second of them is begun")
    async with agent(_config(desk, tmp_path)):
        outcomes = await desk.outcomes(OLD + NEW)
        await desk.send("ring", n=OLD + NEW)
        await desk.answers(OLD + NEW + 1)
    assert sorted(rings.rung) == list(range(OLD + NEW + 1))
    assert [ident for ident, outcome in outcomes.items() if outcome != "done"] == [f"c-{rings.stuck}"]
    assert outcomes[f"c-{rings.stuck}"] == "interrupted"
