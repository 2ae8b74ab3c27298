"""Two leaves whose streams flow into a hub's aggregate, and a lake beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from nats.aio.client import Client

from agent.contract import (
    BatchHeaders,
    Clock,
    Exit,
    MessageId,
    new_run,
)
from hub_jobs.ingest import run as ingest
from tests.harness.servers import ServerPair, api
from tests.harness.streams import AGGREGATE, held, make_aggregate, make_leaf_stream, make_link_consumer
from tests.spark.lakes import contents

RUN = new_run()


EPOCHS = {"edge-1": "epoch0000000a", "edge-2": "epoch0000000b"}


class Fleet:
    """Two leaves whose streams flow into the aggregate, and a lake beside."""

    def __init__(self, servers: ServerPair, registrar: Client, agents: dict[str, Client], lake: Path) -> None:
        self.servers, self.registrar, self.lake = servers, registrar, lake
        self._agents = agents
        self._sent = 0
        key = str(servers.hub.keys["jobs"])
        self.options = ["--server", servers.hub.url, "--seed-file", key, "--lake", str(lake)]

    async def store(self, domain: str, *numbers: int) -> None:
        """Batches of two readings, stored at the leaf and then at the hub."""
        for n in numbers:
            headers = BatchHeaders(MessageId(RUN, "normal", n), 2, 1, Clock(True, "boot", 1)).encode()
            lines = b'{"metric":"a","value":%d}\n{"metric":"b","value":2}\n' % n
            await self.publish(domain, f"tel.{domain}.normal._batch.http", lines, headers)

    async def publish(self, domain: str, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        """Store a message at the leaf."""
        await self._agents[domain].jetstream().publish(subject, payload, headers=headers)

    async def leaf_stream(self, domain: str) -> dict[str, Any]:
        """What the leaf's server says of its stream."""
        return await api(self._agents[domain], f"STREAM.INFO.TEL_{domain}_normal")

    async def at_hub(self, messages: int) -> None:
        """Wait until the aggregate holds so many."""
        await held(self.registrar, AGGREGATE, messages)

    async def new_epochs(self) -> dict[str, str]:
        """Epochs in which the leaves send all of their streams, also what the hub has acknowledged."""
        epochs = {domain: f"{epoch[:-1]}z" for domain, epoch in EPOCHS.items()}
        for domain, agent in self._agents.items():
            await make_link_consumer(agent, domain, epochs[domain], "normal", deliver_policy="all")
        return epochs

    async def ingest(self) -> Exit:
        """Run the job."""
        return await asyncio.to_thread(ingest.main, self.options)

    def bronze(self, *columns: str) -> list[Any]:
        """What is in the table."""
        return contents(self.lake, "bronze", *columns)


@pytest_asyncio.fixture
async def fleet(two_leaves: ServerPair, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet with three batches of `edge-1` and two of `edge-2` at the hub."""
    agents = {domain: await leaf.connect("agent") for domain, leaf in two_leaves.leaves.items()}
    for domain, agent in agents.items():
        await make_leaf_stream(agent, domain, EPOCHS[domain])
    registrar = await two_leaves.hub.connect("registrar")
    await make_aggregate(registrar, EPOCHS)
    one = Fleet(two_leaves, registrar, agents, tmp_path / "lake")
    await one.store("edge-1", 1, 2, 3)
    await one.store("edge-2", 1, 2)
    await one.at_hub(5)
    yield one
