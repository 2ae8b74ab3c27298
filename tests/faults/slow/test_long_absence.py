"""An agent that comes back after devices have published for long to a stream that discards its oldest
messages. The bound within which a connection must be ready is scaled: so many messages are to it what eight
million are to the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.aio.client import Client

from agent.config import Size, StreamClass
from agent.contract import direct_subject
from agent.server.render import render
from tests.faults.report import Case
from tests.harness.agents import CLASS, Agent, agent, chunk, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.servers import ServerPair
from tests.harness.wait import until

MESSAGES = 500_000
SCALED_SECONDS = 1.0


async def publish(device: Client, domain: str) -> None:
    """Publish as a device does; returns once all is stored."""
    subject = direct_subject(domain, CLASS, "press", "noise")
    for number in range(MESSAGES - 1):
        await device.publish(subject, b"1")
        if number % 2_000 == 0:
            await device.request(subject, b"1", timeout=30)
    await device.request(subject, b"1", timeout=30)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_an_agent_is_ready_after_a_long_absence(
    case: Case, servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    case.expected = "readings are taken within seconds, while what was stored meanwhile is read beside"
    leaf = servers.leaf
    await leaf.stop()
    # So many messages would take minutes on a server that syncs each of them.
    monkeypatch.setattr("agent.server.workspace.render", lambda one: render(one).replace('"always"', '"2m"'))
    await leaf.start()
    cls = StreamClass(max_bytes=Size(256 * 2**20), discard="old")
    config = leaf_config(leaf, tmp_path / "state", QUICK, cls)
    async with agent(config) as one:
        for number in range(20):
            await one.submit(chunk(f"before {number}"))
    await publish(await leaf.connect("device"), config.domain)
    if index == "lost":
        (config.state_dir / f"discards-{CLASS}.index").unlink()
    monkeypatch.setattr("agent.jetstream.connection._PREPARE_SECONDS", SCALED_SECONDS)
    case.begins()
    one = Agent(config)
    try:
        await one.ready()
        await one.submit(chunk("after"))
        case.recover_seconds = case.saw("a reading is stored")
        probe = one.leaf._discards._shelves[CLASS]
        await until(lambda: probe.loaded, "what was stored meanwhile is known")
        case.saw("what was stored meanwhile is read")
        assert probe.top > MESSAGES
    finally:
        await one.crash()
