"""Several classes on one leaf: bulk cannot push out critical, be its quota, the whole store or the disk
full."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from agent.config import Size, StreamClass
from agent.contract import COMMANDS_BYTES, batch_subject, leaf_stream
from agent.jetstream import JetStream
from agent.leaf.intake import RefusalReason, RefusedError
from agent.leaf.link.status import LinkState
from agent.server.process import EmbeddedServer
from agent.server.watch import ServerWatch
from tests.faults.tools.disk import missing, small_disk
from tests.harness.agents import Agent, chunk, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.registrar import hub_of
from tests.harness.servers import Leaf, ServerPair, open_server_pair
from tests.harness.streams import AGGREGATE, stored_messages
from tests.harness.wait import until

_WHY_NOT = missing()
MIB = 2**20
CRITICAL, BULK = 2 * MIB, 6 * MIB
CLASSES = [
    StreamClass(name="bulk", max_bytes=Size(BULK), priority=50),
    StreamClass(name="critical", max_bytes=Size(CRITICAL), priority=1),
]


@asynccontextmanager
async def _agent(leaf: Leaf, directory: Path, store: Path, max_file_store: int) -> AsyncIterator[Agent]:
    """An agent with both classes beside a server of its own that may store so much."""
    await leaf.start_with(store_dir=store, max_file_store=max_file_store)
    config = leaf_config(leaf, directory / "state", QUICK)
    config.class_ = CLASSES
    one = Agent(config)
    watch = ServerWatch(leaf.url, leaf.keys["agent_system"], leaf.domain, one.health, store=store)
    watching = asyncio.create_task(watch.run())
    try:
        await one.ready()
        yield one
    finally:
        watching.cancel()
        await one.crash()


async def _fill(one: Agent, cls: str, most: int) -> tuple[int, RefusedError | None]:
    """Store up to so many bytes of noise; how many were stored, and why no more."""
    stored = 0
    while stored < most:
        text = os.urandom(100_000).hex()
        try:
            await one.leaf.intake.submit("http", cls, chunk(text))
        except RefusedError as refusal:
            return stored, refusal
        stored += 100_000
    return stored, None


async def test_bulk_that_fills_its_quota_leaves_critical_all_of_its_own(tmp_path: Path) -> None:
    # The store holds both quotas and the mirror of the commands, and not a byte more.
    whole = CRITICAL + BULK + COMMANDS_BYTES
    async with (
        open_server_pair(tmp_path, "edge-1", classes=("bulk", "critical")) as servers,
        _agent(servers.leaf, tmp_path, tmp_path / "store", whole) as one,
    ):
        stored, refusal = await _fill(one, "bulk", 2 * BULK)
        assert refusal is not None
        assert refusal.reason is RefusalReason.FULL
        assert stored > BULK * 0.8
        stored, refusal = await _fill(one, "critical", 2 * CRITICAL)
        assert refusal is not None
        assert refusal.reason is RefusalReason.FULL
        assert stored > CRITICAL * 0.8
        assert one.value(
            "petiole_refused_readings_total", input="http", **{"class": "bulk"}, reason="stream_full"
        )


@pytest.mark.skipif(_WHY_NOT is not None, reason=f"no disk can be filled: {_WHY_NOT}")
async def test_on_a_disk_that_runs_short_critical_is_stored_on_while_bulk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        async with (
            open_server_pair(tmp_path, "edge-1", classes=("bulk", "critical")) as servers,
            _agent(servers.leaf, tmp_path, disk.path / "store", 2**30) as one,
        ):
            assert (await _fill(one, "bulk", MIB))[1] is None
            disk.fill(but=CRITICAL + 4 * MIB)  # the reserve of so small a disk is 3.2 MiB
            quotas = one.leaf._view.disk_quota
            await until(lambda: quotas.refusal("bulk") is not None, "bulk is held back")
            _, refusal = await _fill(one, "bulk", 1)
            assert refusal is not None
            assert refusal.reason is RefusalReason.UNAVAILABLE
            status = one.leaf.status()["classes"]
            assert "class critical may still need" in status["bulk"]["held_back"]
            assert status["critical"]["held_back"] is None
            stored, refusal = await _fill(one, "critical", 2 * CRITICAL)
            assert refusal is not None
            assert (refusal.reason, stored > CRITICAL * 0.8) == (RefusalReason.FULL, True)
            js = JetStream(await servers.leaf.connect("agent"))
            assert (await js.stream_info(leaf_stream("edge-1", "critical"))).bytes > CRITICAL * 0.8
            assert one.health.sentence is None, "the server is well: it was not driven to the end of its disk"
            disk.free()

            async def taken() -> bool:
                return (await _fill(one, "bulk", 1))[1] is None

            await until(taken, "bulk is taken in again")


async def _flowing(one: Agent) -> None:
    board = one.leaf.link.status
    await until(lambda: board.state is LinkState.FLOWING, "every class flows")


async def _allow(servers: ServerPair, classes: tuple[str, ...]) -> None:
    """As when the hub's configuration got another class and its agent was started again, then the leaf's with
    `petiole server stop` before."""
    hub, leaf = servers.hub, servers.leaf
    users = tuple(structs.replace(one, classes=classes) for one in hub.config.leaves)
    hub.config = structs.replace(hub.config, leaves=users)
    hub.server.release()
    hub.server = EmbeddedServer(hub.config, hub.directory)
    assert await hub.server.start() == "reloaded"
    await leaf.start_with(classes=classes)
    await leaf.wait_linked()


async def test_the_classes_of_a_leaf_come_to_the_hub_and_a_third_is_added_while_the_fleet_runs(
    tmp_path: Path,
) -> None:
    classes = ("critical", "normal", "bulk")
    async with open_server_pair(tmp_path, "edge-1", classes=classes[:2]) as servers:
        config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
        hub = await hub_of(servers)

        async def subjects() -> set[str]:
            found = {message.subject for message in await stored_messages(hub.js, AGGREGATE)}
            return {subject for subject in found if "._batch.http" in subject}

        for known in (classes[:2], classes):
            if known == classes:
                await _allow(servers, classes)
            config.class_ = [StreamClass(name, max_bytes=Size(MIB)) for name in known]
            async with hub.registrar():
                one = Agent(config)
                await one.ready()
                try:
                    await _flowing(one)
                    for name in known:
                        await one.leaf.intake.submit("http", name, chunk(f"of {name}"))
                    wanted = {batch_subject("edge-1", name, "http") for name in known}

                    async def there(wanted: set[str] = wanted) -> bool:
                        return await subjects() == wanted

                    await until(there, f"{known} are at the hub")
                finally:
                    await one.stop()
