"""What an agent finds of a class that its configuration has no more, in the stream of a real server."""

from __future__ import annotations

import pytest_asyncio
from nats.aio.client import Client

from agent.contract import clock_subject, direct_subject, leaf_stream, ledger_subject, new_epoch
from agent.jetstream import JetStream
from agent.leaf.publish.stream_recovery import StreamRecovery
from tests.harness.agents import CLASS
from tests.harness.servers import ServerPair
from tests.harness.streams import make_leaf_stream

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
    recovery = StreamRecovery(nc, js, DOMAIN)
    assert await recovery.last_of_removed(CLASS, 0) == reading
    assert await recovery.last_of_removed(CLASS, reading) is None
