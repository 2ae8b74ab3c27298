"""A class that the hub takes at a rate of its own."""

from __future__ import annotations

from pathlib import Path

from agent.config import Size, StreamClass
from agent.contract import link_consumer
from tests.harness.agents import CLASS, agent, leaf_config, probe_stream
from tests.harness.servers import ServerPair


async def test_a_class_gets_its_rate_and_another_one_later_within_one_epoch(
    servers: ServerPair, tmp_path: Path
) -> None:
    one_shelf = await probe_stream(servers.leaf)
    epochs = []
    for rate, bits in ((125_000, 1_000_000), (10**6, 8_000_000), (None, 0)):
        stream = StreamClass(link_rate=None if rate is None else Size(rate))
        async with agent(leaf_config(servers.leaf, tmp_path / "state", stream=stream)) as one:
            epochs.append(one.state().epochs[CLASS])
            consumer = await one_shelf.js.consumer_info(one_shelf.stream, link_consumer(epochs[-1]))
            assert consumer.config.get("rate_limit_bps", 0) == bits
            await one.stop()
    assert len(set(epochs)) == 1
