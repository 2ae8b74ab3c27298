"""What a leaf's agent finds out about a server that is not its own before it relies on it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.base.metrics import Metrics
from agent.base.nats_server import find_binary
from agent.config import Config, Nats
from agent.config.keys import ensure_key
from agent.demo.loopback import free_port
from agent.process.hub import HubAgent
from agent.server.health import ServerHealth
from agent.server.watch import ServerWatch
from tests.harness.agents import Agent, chunk
from tests.harness.wait import until

CONFIGURATION = """
server_name: own
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", max_file_store: 2G, domain: edge-1{more} }}
accounts {{
  HERE {{ jetstream: enabled, users: [{{ nkey: {agent} }}] }}
  SYS {{ users: [{{ nkey: {system} }}] }}
}}
system_account: SYS
"""


class OwnServer:
    """A server that somebody runs himself, with a configuration of his own."""

    def __init__(self, directory: Path) -> None:
        self.agent, self.system = directory / "agent.nk", directory / "system.nk"
        self.listen = f"127.0.0.1:{free_port()}"
        self._directory = directory

    @asynccontextmanager
    async def running(self, binary: Path, more: str = "") -> AsyncIterator[None]:
        path = self._directory / "own.conf"
        path.write_text(
            CONFIGURATION.format(
                port=self.listen.rpartition(":")[2],
                store=self._directory / "own-store",
                agent=ensure_key(self.agent),
                system=ensure_key(self.system),
                more=more,
            )
        )
        process = await asyncio.create_subprocess_exec(binary, "-c", path, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            await process.wait()


@asynccontextmanager
async def beside(own: OwnServer, state_dir: Path) -> AsyncIterator[Agent]:
    """An agent beside a server of somebody's own, whose watch runs too."""
    nats = Nats(server="external", listen=own.listen, seed_file=own.agent, system_seed_file=own.system)
    one = Agent(Config(domain="edge-1", state_dir=state_dir, nats=nats))
    watching = ServerWatch(f"nats://{own.listen}", own.system, "edge-1", one.health)
    task = asyncio.create_task(watching.run())
    try:
        yield one
    finally:
        task.cancel()
        await one.crash()


async def test_an_agent_does_not_use_an_old_server_that_is_not_its_own(
    tmp_path: Path, old_server: tuple[str, Path]
) -> None:
    version, binary = old_server
    own = OwnServer(tmp_path)
    async with beside(own, tmp_path / "state") as one:
        async with own.running(binary):
            await until(lambda: one.health.sentence is not None, "the old server is refused")
            sentence = one.health.sentence or ""
            assert version in sentence
            assert "get lost silently: take 2.15.1" in sentence
            assert one.health.status()["version"] == version
            assert not one.leaf.ready()[0]
        async with own.running(find_binary()):
            await one.ready()
            await one.submit(chunk("a"))
            assert one.health.sentence is None


@pytest.mark.parametrize(
    ("more", "synced", "said"),
    [
        (", sync_interval: always", True, None),
        (", sync_interval: 10s", False, "acknowledged is not synced: the server syncs its disk each 10 s"),
        ("", False, "acknowledged is not synced: the server syncs its disk each 120 s"),
    ],
)
async def test_an_agent_says_whether_acknowledged_means_synced(
    tmp_path: Path, more: str, synced: bool, said: str | None
) -> None:
    own = OwnServer(tmp_path)
    async with own.running(find_binary(), more), beside(own, tmp_path / "state") as one:
        assert one.health.status()["synced"] is None
        await until(lambda: one.health.status()["synced"] is not None, "the server was asked")
        assert one.health.status()["synced"] is synced
        warning = one.health.warning
        assert warning is None if said is None else (warning or "").startswith(said)
        assert one.value("petiole_server_synced") == synced


async def test_the_hub_s_agent_does_not_use_an_old_server_either(
    tmp_path: Path, old_server: tuple[str, Path]
) -> None:
    version, binary = old_server
    own, stopping, metrics = OwnServer(tmp_path), asyncio.Event(), Metrics()
    health = ServerHealth(metrics)
    nats = Nats(server="external", listen=own.listen, seed_file=own.agent, system_seed_file=own.system)
    hub = HubAgent(Config(domain="hub", role="hub", state_dir=tmp_path, nats=nats), metrics, health)
    async with own.running(binary):
        task = asyncio.create_task(hub.run(stopping))
        await until(lambda: version in (health.sentence or ""), "the old server is refused")
        assert not hub.ready()[0]
        assert not task.done(), "it goes on trying"
        stopping.set()
        async with asyncio.timeout(20):
            await task
