"""A disk that becomes full under a leaf's server and is freed again, as far as it takes no time; the rest is
in `tests/faults`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from agent.leaf.intake import RefusalReason, RefusedError
from agent.server.watch import ServerWatch
from tests.faults.tools.disk import SmallDisk, missing, small_disk
from tests.harness.agents import Agent, chunk, leaf_config, probe_stream
from tests.harness.servers import Leaf, ServerPair
from tests.harness.wait import WAIT_SECONDS, until

_WHY_NOT = missing()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=f"no disk can be filled: {_WHY_NOT}")

ALMOST = 2**20


@asynccontextmanager
async def beside(leaf: Leaf, disk: SmallDisk, state_dir: Path, *, ours: bool) -> AsyncIterator[Agent]:
    """An agent beside a leaf's server whose store is on a small disk; one of `ours` is looked after."""
    await leaf.start_with(store_dir=disk.path / "store")
    one = Agent(leaf_config(leaf, state_dir))
    watch = ServerWatch(
        leaf.url,
        leaf.keys["agent_system"],
        leaf.domain,
        one.health,
        restart=leaf.server.end if ours else None,
        store=leaf.config.store_dir if ours else None,
    )
    tasks = [asyncio.create_task(watch.run())]
    if ours:
        tasks.append(asyncio.create_task(leaf.server.supervise()))
    try:
        await one.ready()
        yield one
    finally:
        for task in tasks:
            task.cancel()
        await one.crash()
        disk.free()


async def fill_by_publishing(leaf: Leaf, one: Agent) -> int:
    """Publish as a device until the agent names the fault; returns how many the server acknowledged."""
    device = await leaf.connect("device")
    acknowledged = 0
    async with asyncio.timeout(WAIT_SECONDS):
        while "stopped writing" not in (one.health.sentence or ""):
            with suppress(NatsError):
                data = os.urandom(100_000)
                answer = await device.request("tel.edge-1.normal.d.m", data, timeout=0.5)
                acknowledged += b'"seq"' in answer.data
    return acknowledged


async def refused(one: Agent) -> str:
    """The words in which a reading is refused."""
    with pytest.raises(RefusedError) as refusal:
        await one.submit(chunk("refused"))
    assert refusal.value.reason is RefusalReason.UNAVAILABLE
    return str(refusal.value)


async def test_a_server_of_ours_is_started_anew_when_its_full_disk_is_freed(
    servers: ServerPair, tmp_path: Path
) -> None:
    leaf = servers.leaf
    with small_disk(tmp_path / "disk", 32) as disk:
        async with beside(leaf, disk, tmp_path / "state", ours=True) as one:
            await one.submit(chunk("before"))
            server = leaf.server.pid
            disk.fill(but=ALMOST)
            acknowledged = await fill_by_publishing(leaf, one)
            assert "no space left on device; it is restarted as soon as there is room" in await refused(one)
            assert leaf.server.pid == server
            disk.free()
            await until(lambda: leaf.server.pid not in (None, server), "it is started anew")
            await until(lambda: one.health.sentence is None, "it is well again")
            await one.ready()
            await one.submit(chunk("after"))
            held = await probe_stream(leaf)
            assert await held.texts() == ["before/0", "after/0"]
            devices = [m for m in await held.messages() if m.subject.endswith(".d.m")]
            assert len(devices) >= acknowledged > 5, "nothing that was acknowledged is lost"
        await leaf.stop()


async def test_a_server_of_somebody_else_is_left_alone_and_who_must_do_what_is_said(
    servers: ServerPair, tmp_path: Path
) -> None:
    leaf = servers.leaf
    with small_disk(tmp_path / "disk", 32) as disk:
        async with beside(leaf, disk, tmp_path / "state", ours=False) as one:
            server = leaf.server.pid
            disk.fill(but=ALMOST)
            await fill_by_publishing(leaf, one)
            said = await refused(one)
            assert f"free some room on {disk.path}" in said
            assert said.endswith("then restart it")
            disk.free()
            await until(lambda: (one.health.sentence or "").endswith("; restart it"), "what is left to do")
            assert leaf.server.pid == server
            await leaf.stop()
            await leaf.start()
            await until(lambda: one.health.sentence is None, "it is well again")
            await one.ready()
            await one.submit(chunk("after"))
        await leaf.stop()
