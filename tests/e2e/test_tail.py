"""Headers are read to the end of a stream, also where a server ends a pull before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nats
import pytest

from agent.contract import inbox_prefix, leaf_stream
from agent.jetstream import ConsumerInfo, JetStream
from agent.jetstream.readers import StoredHeaders, read_headers
from tests.harness.servers import Leaf, ServerPair, open_server_pair
from tests.harness.streams import make_leaf_stream

_MESSAGES = 2_500
"""More than two pulls."""


async def test_a_pull_that_the_server_ends_early_is_not_taken_for_the_end_of_the_stream(
    tmp_path: Path,
) -> None:
    async with open_server_pair(tmp_path, "edge-1") as servers:
        nc = await servers.leaf.connect("agent")
        stream = leaf_stream("edge-1", "normal")
        await make_leaf_stream(nc, "edge-1", "epoch0000000a")
        publishing = nc.jetstream()
        for _ in range(_MESSAGES // 500):
            await asyncio.gather(
                *(publishing.publish("tel.edge-1.normal.pump.t", b"1", timeout=60) for _ in range(500))
            )
        js, found = Noting(nc, timeout=30), list[StoredHeaders]()
        pulls = 0

        def hurt() -> bool:
            nonlocal pulls
            pulls += 1
            if pulls == 2:  # in a loop of its own: no other pull may come before it is done
                thread = threading.Thread(target=asyncio.run, args=(delete(servers.leaf, stream, js.newest),))
                thread.start()
                thread.join()
            return False

        start = {"deliver_policy": "all", "filter_subject": "tel.edge-1.normal.>"}
        assert await read_headers(nc, js, stream, start, found.append, hurt)
        assert [one.seq for one in found] == list(range(1, _MESSAGES + 1))
        assert pulls > 3


class Noting(JetStream):
    """Knows the consumer that was made last."""

    newest = ""

    async def create_consumer(self, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
        made = await super().create_consumer(stream, config)
        self.newest = made.name
        return made


async def delete(leaf: Leaf, stream: str, consumer: str) -> None:
    """Delete a consumer, over a connection of this loop."""
    nc = await nats.connect(
        leaf.url, nkeys_seed=str(leaf.keys["agent"]), inbox_prefix=inbox_prefix(leaf.domain).encode()
    )
    await JetStream(nc, timeout=30).delete_consumer(stream, consumer)
    await nc.close()


async def test_reading_that_is_cancelled_does_not_wait_for_a_server_that_answers_no_more(
    servers: ServerPair,
) -> None:
    nc = await servers.leaf.connect("agent")
    stream = leaf_stream("edge-1", "normal")
    await make_leaf_stream(nc, "edge-1", "epoch0000000a")
    for _ in range(2):
        await nc.jetstream().publish("tel.edge-1.normal.pump.t", b"1")
    arrived = asyncio.Event()

    def take(_message: StoredHeaders) -> None:
        servers.leaf.pause()
        arrived.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.jetstream.readers._PULL", 1)
        reading = asyncio.create_task(
            read_headers(nc, JetStream(nc, timeout=600), stream, {"deliver_policy": "all"}, take)
        )
        try:
            await arrived.wait()
            reading.cancel()
            await asyncio.wait([reading], timeout=30)
            assert reading.cancelled()
        finally:
            servers.leaf.resume()
