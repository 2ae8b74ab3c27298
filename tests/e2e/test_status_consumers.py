"""`petiole status --consumers` beside a running hub and leaf, with a consumer that lags."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.e2e.test_petiole_fleet import READING, Pair
from tests.harness.agent_process import Agent
from tests.harness.wait import wait_for

STREAM = "TEL_edge-1_normal"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Running, and what the leaf stores flows."""
    one = Pair(tmp_path)
    try:
        one.hub.start()
        one.leaf.start()
        wait_for(lambda: one.leaf.status()["link"]["state"] == "flowing", "the link flows")
        yield one
    finally:
        one.leaf.close()
        one.hub.close()


def rows(pair: Pair, side: Agent) -> dict[str, dict[str, Any]]:
    """The rows of one side by the consumer's name."""
    found = json.loads(pair.says(side, "status", "--consumers", "--json").stdout)["consumers"]
    assert found["problem"] == ""
    return {row["name"]: row for row in found["rows"]}


async def read(url: str, seed: Path) -> None:
    """A consumer that begins at the second message, is handed it and does not acknowledge it."""
    nc = await nats.connect(url, nkeys_seed=str(seed), inbox_prefix="_INBOX_edge-1")
    js = nc.jetstream()
    config = ConsumerConfig(
        name="slow",
        durable_name="slow",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=2,
    )
    await js.add_consumer(STREAM, config)
    commands = await js.pull_subscribe_bind("slow", stream=STREAM)
    await commands.fetch(1, timeout=10)
    await nc.close()


def test_each_consumer_is_shown_with_how_far_it_is_and_what_is_left(pair: Pair) -> None:
    for number in range(3):
        assert pair.leaf.post(READING, f"a-{number}") == 204
    member = pair.leaf.member
    asyncio.run(read(member.nats_url, member.state / "keys" / "agent.nk"))
    slow = rows(pair, pair.leaf)["slow"]
    assert (slow["stream"], slow["filter"], slow["ack_floor"], slow["delivered"]) == (STREAM, ">", 1, 2)
    assert (slow["ack_pending"], slow["redelivered"]) == (1, 0)
    assert slow["lag"] == slow["pending"] + 1 >= 2
    assert 0 <= slow["active"] < 60
    assert any(name.startswith("hub-") for name in rows(pair, pair.leaf))
    assert rows(pair, pair.hub)["cmd-edge-1"]["filter"] == "cmd.edge-1.>"
    head, *printed = pair.says(pair.leaf, "status", "--consumers").stdout.splitlines()[1:]
    assert head.split()[:2] == ["STREAM", "CONSUMER"]
    assert [STREAM, "slow", "1", "2"] in [line.split()[:4] for line in printed]
    assert pair.says(pair.leaf, "status", "--consumers", "--watch").exit_code == 2
