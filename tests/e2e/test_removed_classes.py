"""What an agent finds of a class that its configuration has no more, in the stream of a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
from nats.aio.client import Client

from agent.config import StreamClass
from agent.contract import Checkpoint, clock_subject, direct_subject, leaf_stream, ledger_subject, new_epoch
from agent.jetstream import JetStream
from agent.leaf.intake import Chunk
from agent.leaf.publish import removed_classes
from agent.leaf.publish.removed_classes import RemovedClasses
from agent.leaf.publish.stream_recovery import CurrentRecovery, StreamRecovery
from agent.leaf.state import VERSION, State
from agent.leaf.state_file import StateFile, load
from tests.harness.agents import CLASS, agent, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.servers import ServerPair
from tests.harness.streams import make_leaf_stream
from tests.harness.wait import until

DOMAIN, EPOCH = "edge-1", new_epoch()
STREAM = leaf_stream(DOMAIN, CLASS)
READING = direct_subject(DOMAIN, CLASS, "pump", "bar")


@pytest_asyncio.fixture
async def nc(servers: ServerPair) -> Client:
    """The agent's connection to a server that has the stream of the class."""
    client = await servers.leaf.connect("agent")
    await make_leaf_stream(client, DOMAIN, EPOCH)
    return client


async def test_readings_are_found_below_ledger_records_and_deleted_messages(nc: Client) -> None:
    js, deleted = JetStream(nc), direct_subject(DOMAIN, CLASS, "pump", "deleted")
    reading = await js.publish(READING, b"1")
    await js.publish(deleted, b"1")
    for subject in (ledger_subject(DOMAIN, CLASS), clock_subject(DOMAIN, CLASS)):
        await js.publish(subject, b"{}")
    await js.api(f"STREAM.PURGE.{STREAM}", {"filter": deleted})
    assert await StreamRecovery(nc, js, DOMAIN).newest_reading(CLASS) == reading


def state_file(directory: Path) -> StateFile:
    """The class was configured before, and the hub has confirmed nothing of it."""
    return StateFile(directory / "state.json", State(VERSION, "machine", DOMAIN, epochs={CLASS: EPOCH}))


def removed(recovery: CurrentRecovery, directory: Path) -> RemovedClasses:
    """As an agent checks it that starts for the first time since."""
    return RemovedClasses(recovery, state_file(directory), [])


async def shows(classes: RemovedClasses, part: str, *, checked: bool) -> None:
    """Return once the row of the class is this one."""

    def reached() -> bool:
        row = classes.rows.get(CLASS)
        return row is not None and part in row["sentence"] and row["checked"] is checked

    await until(reached, f"the class is shown with {part!r}")


async def test_a_removed_class_is_checked_again_during_a_run(
    nc: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_classes, "_CHECK_SECONDS", 0.01)
    js, recovery = JetStream(nc), CurrentRecovery()
    classes = removed(recovery, tmp_path)
    with recovery.connected(StreamRecovery(nc, js, DOMAIN)):
        running = asyncio.create_task(classes.run())
        for _ in range(2):
            last = await js.publish(READING, b"1")
            await shows(classes, f"up to 0 of {last},", checked=True)
        await js.purge(STREAM, last)
        await until(lambda: not classes.rows, "nothing is left that the hub may lack")
        running.cancel()


async def test_a_removed_class_that_the_agent_may_not_read_is_named_and_tried_again(
    servers: ServerPair, nc: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_classes, "_AGAIN_SECONDS", 0.01)
    await JetStream(nc).publish(READING, b"1")
    device = await servers.leaf.connect("device")
    recovery = CurrentRecovery()
    classes = removed(recovery, tmp_path)
    with recovery.connected(StreamRecovery(device, JetStream(device, timeout=0.05), DOMAIN)):
        running = asyncio.create_task(classes.run())
        await shows(classes, f"let the agent ask $JS.API.STREAM.MSG.GET.{STREAM}", checked=False)
    with recovery.connected(StreamRecovery(nc, JetStream(nc), DOMAIN)):
        await shows(classes, "up to 0 of 1,", checked=True)
        running.cancel()


@pytest.mark.parametrize("fault", ["lost", "restored"])
async def test_a_removed_class_is_named_though_its_store_is_lost_or_restored(
    servers: ServerPair, nc: Client, tmp_path: Path, fault: str
) -> None:
    js, recovery, file = JetStream(nc), CurrentRecovery(), state_file(tmp_path)
    await js.publish(READING, b"1")
    await servers.leaf.back_up(tmp_path / "copy")
    last = await js.publish(READING, b"1")
    with recovery.connected(StreamRecovery(nc, js, DOMAIN)):
        running = asyncio.create_task((classes := RemovedClasses(recovery, file, [])).run())
        await shows(classes, f"up to 0 of {last},", checked=True)
        running.cancel()
    await file.save()
    await (servers.leaf.wipe() if fault == "lost" else servers.leaf.restore(tmp_path / "copy"))
    after = await servers.leaf.connect("agent")
    file = StateFile(tmp_path / "state.json", load(tmp_path / "state.json", DOMAIN))
    with recovery.connected(StreamRecovery(after, JetStream(after), DOMAIN)):
        running = asyncio.create_task((classes := RemovedClasses(recovery, file, [])).run())
        await shows(classes, f"the store of {STREAM} is lost or restored", checked=True)
        running.cancel()
    assert not RemovedClasses(recovery, file, [CLASS]).rows
    assert not file.current.unconfirmed, "the class is configured again"


@pytest.mark.parametrize("fault", ["lost", "restored"])
async def test_a_class_that_is_removed_while_its_store_is_lost_or_restored_is_named(
    servers: ServerPair, tmp_path: Path, fault: str
) -> None:
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK, StreamClass())
    async with agent(config) as one:
        await one.submit(Chunk(b'{"metric":"n","value":1}\n', 1))
        await servers.leaf.back_up(tmp_path / "copy")
        await one.submit(Chunk(b'{"metric":"n","value":2}\n', 1))
        await one.stop()
    assert one.state().acked[CLASS].seq > one.state().newest_reading(CLASS), "it ends with a record"
    await (servers.leaf.wipe() if fault == "lost" else servers.leaf.restore(tmp_path / "copy"))
    recovery, nc = CurrentRecovery(), await servers.leaf.connect("agent")
    with recovery.connected(StreamRecovery(nc, JetStream(nc), DOMAIN)):
        classes = RemovedClasses(recovery, StateFile(one.state_path, one.state()), [])
        running = asyncio.create_task(classes.run())
        await shows(classes, f"the store of {STREAM} is lost or restored", checked=True)
        running.cancel()

        state = one.state()
        state.checkpoint[CLASS] = Checkpoint(state.newest_reading(CLASS), "id", "TELEMETRY_0", 1)
        confirmed = RemovedClasses(recovery, StateFile(one.state_path, state), [])
        assert await confirmed._check(CLASS)
        assert not confirmed.rows, "the hub has all readings"
