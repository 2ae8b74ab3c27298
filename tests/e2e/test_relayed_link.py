"""A relayed link over a line that breaks: real agents and servers, and packets of real TCP between them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import nats
import pytest
import pytest_asyncio

from agent.contract import aggregate, inbox_prefix
from agent.jetstream import JetStream, JetStreamError
from agent.testing.stored_stream import rows_of
from tests.faults.tools.line import Line, Quality, Windows, line, missing
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.streams import stored_messages
from tests.harness.wait import until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
BREAKING = Quality(rate=200e3, round_trip=0.1, windows=Windows(up=2.0, down=0.5))
READINGS = 120


class Relayed(NamedTuple):
    hub: Agent
    leaf: Agent
    line: Line

    def post(self, first: int, count: int, together: int = 1) -> None:
        """Store readings of incompressible bytes, so many in a batch."""
        for begin in range(first, first + count, together):
            values = [
                f"{n:06d}" + random.Random(n).randbytes(2_000).hex() for n in range(begin, begin + together)
            ]
            rows = [{"device": "d", "metric": "m", "value": value} for value in values]
            assert self.leaf.post(json.dumps(rows).encode(), f"key-{begin}") == 204

    async def holds(self, count: int) -> Counter[int]:
        """How often the hub's stream has each reading, once it has this many different readings."""
        member, found = self.hub.member, Counter[int]()
        seed, prefix = str(member.state / "keys" / "jobs.nk"), inbox_prefix("jobs")

        async def come() -> bool:
            found.clear()
            with suppress(OSError, nats.errors.Error, JetStreamError):
                client = await nats.connect(member.nats_url, nkeys_seed=seed, inbox_prefix=prefix)
                try:
                    messages = await stored_messages(JetStream(client), aggregate(0))
                finally:
                    await client.close()
                batches = [rows_of(message) for message in messages if "._batch.http" in message.subject]
                found.update(int(row["value"][:6]) for rows in batches for row in rows)
            return len(found) >= count

        await until(come, f"the hub holds {count} readings")
        return found

    def bridged(self) -> float:
        return self.leaf.metric("petiole_link_bridged_total")

    def links(self) -> int:
        """How often the leaf's server has linked."""
        log = self.leaf.member.state / "nats" / "nats-server.log"
        return log.read_text().count("Leafnode connection created")


@pytest_asyncio.fixture
async def relayed(tmp_path: Path) -> AsyncIterator[Relayed]:
    """A hub and a leaf between which data flows over a clear line."""
    with line() as one, hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        at_hub, at_leaf = hub.member.config, leaf.member.config
        at_hub.write_text(at_hub.read_text().replace("[nats]\n", f'[nats]\nresume_listen = "{one.listen}"\n'))
        text = at_leaf.read_text().replace("nats-leaf://127.0.0.1:", f"nats-leaf://{one.host}:")
        options = f'\n[link]\nresume_port = {one.port}\n[publish]\nbatch_bytes = "4MiB"\n'
        at_leaf.write_text(text + options)
        hub.start()
        leaf.start()
        made = Relayed(hub, leaf, one)
        made.post(0, 1)
        await made.holds(1)
        yield made


async def test_a_relayed_link_continues_over_breaks_and_repeats_nothing(relayed: Relayed) -> None:
    relayed.line.set(BREAKING)
    relayed.post(1, READINGS)
    await until(lambda: relayed.bridged() >= 3, "three breaks are bridged")
    assert await relayed.holds(READINGS + 1) == Counter(range(READINGS + 1))
    assert relayed.links() == 1
    assert "the link continued after" in relayed.leaf.petiole("status").stdout


async def test_a_message_larger_than_any_window_arrives(relayed: Relayed) -> None:
    relayed.line.set(Quality(rate=100e3, round_trip=0.1, windows=Windows(up=2.0, down=0.5)))
    relayed.post(1, 240, together=240)
    assert await relayed.holds(241) == Counter(range(241))
    assert relayed.bridged() >= 2
    assert relayed.links() == 1


async def test_a_break_that_outlasts_the_session_costs_only_the_session(relayed: Relayed) -> None:
    relayed.line.stall()
    relayed.post(1, READINGS)
    await until(lambda: b'"relayed link ended"' in relayed.leaf.log.read_bytes(), "the session has ended")
    relayed.line.restore()
    assert set(await relayed.holds(READINGS + 1)) == set(range(READINGS + 1))
    assert relayed.links() == 2


@pytest.mark.parametrize("whose", ["leaf", "hub"])
@pytest.mark.parametrize("what", ["agent", "server"])
async def test_nothing_is_lost_when_an_end_of_a_relayed_link_is_killed(
    relayed: Relayed, whose: str, what: str
) -> None:
    agent = relayed.leaf if whose == "leaf" else relayed.hub
    relayed.line.set(BREAKING)
    relayed.post(1, READINGS)
    if what == "agent":
        agent.end(signal.SIGKILL)
        agent.start()
    else:
        server = agent.server()
        assert server is not None
        os.kill(server, signal.SIGKILL)
    relayed.line.restore()
    assert set(await relayed.holds(READINGS + 1)) == set(range(READINGS + 1))


async def test_a_hub_whose_stopped_agent_goes_on_gets_all(relayed: Relayed) -> None:
    assert relayed.hub.process is not None
    relayed.hub.process.send_signal(signal.SIGSTOP)
    relayed.post(1, READINGS)
    await until(lambda: b'"relayed link ended"' in relayed.leaf.log.read_bytes(), "the session has ended")
    relayed.hub.process.send_signal(signal.SIGCONT)
    assert set(await relayed.holds(READINGS + 1)) == set(range(READINGS + 1))


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"PTR1" + bytes(60), random.Random(1).randbytes(4_096)]
)
async def test_strangers_at_the_relays_port_get_nothing_and_disturb_nothing(
    relayed: Relayed, said: bytes
) -> None:
    reader, writer = await asyncio.open_connection(relayed.line.near, relayed.line.port)
    writer.write(said)
    writer.write_eof()
    with suppress(OSError):
        assert await reader.read() == b""
    writer.close()
    relayed.post(1, 2)
    assert await relayed.holds(3) == Counter(range(3))
    assert relayed.links() == 1
