"""The hub's streams on three servers that are killed together again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest_asyncio

from agent.contract import aggregate
from agent.demo.loopback import free_port
from agent.hub.registrar.aggregate import AggregateSettings, aggregate_config
from agent.jetstream import ApiError, JetStream, UnavailableError
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.wait import until

STREAM = aggregate(0)
ROUNDS = 5
MESSAGES = 600
AT_ONCE = 100
BODY = b"a reading that compresses well " * 20
SECONDS = 60.0
COMPRESSED = b"cmp"
"""How a block begins that nats-server has compressed."""
_CONFIG = """
server_name: "{name}"
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{directory}/store", sync_interval: "always" }}
cluster {{ name: "hub", listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[ConfiguredServer]]:
    """Three servers of a cluster, running."""
    ports = {name: free_port() for name in "abc"}
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports.values())
    found = []
    for name, route in ports.items():
        port, directory = free_port(), tmp_path / name
        text = _CONFIG.format(name=name, port=port, directory=directory, route=route, routes=routes)
        found.append(ConfiguredServer(directory, name, port, text))
    try:
        await asyncio.gather(*(server.start() for server in found))
        yield found
    finally:
        await asyncio.gather(*(server.kill() for server in found))


async def test_copies_that_are_killed_again_and_again_append_to_no_compressed_block(
    servers: list[ConfiguredServer],
) -> None:
    client = await nats.connect(
        [server.url for server in servers],
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        error_cb=_quiet,
    )
    js = JetStream(client)
    config = aggregate_config(STREAM, AggregateSettings(512 * 2**20, replicas=3), [])
    try:
        await until(lambda: _made(js, {**config, "subjects": ["tel.>"]}), "the stream is made", SECONDS)
        for _ in range(ROUNDS):
            for _ in range(MESSAGES // AT_ONCE):
                await asyncio.gather(*(_stored(js) for _ in range(AT_ONCE)))
            assert [newest_block(server)[:3] for server in servers].count(COMPRESSED) == 0
            await asyncio.gather(*(server.kill() for server in servers))
            await asyncio.gather(*(server.start() for server in servers))
        await _stored(js)
    finally:
        await closed(client)


def newest_block(server: ConfiguredServer) -> bytes:
    """The block of its copy that a server appends to."""
    blocks = (server.directory / "store").glob(f"**/streams/{STREAM}/msgs/*.blk")
    return max(blocks, key=lambda path: int(path.stem)).read_bytes()


async def _made(js: JetStream, config: dict[str, object]) -> bool:
    try:
        await js.ensure_stream(config)
    except (ApiError, UnavailableError):  # no leader yet
        return False
    return True


async def _stored(js: JetStream) -> None:
    async def acknowledged() -> bool:
        try:
            await js.publish("tel.edge-1.normal.batch.http", BODY)
        except (ApiError, UnavailableError):  # the leader is being elected
            return False
        return True

    await until(acknowledged, "a message is stored", SECONDS)


async def _quiet(_: Exception) -> None:
    """Connections break when their server is killed."""
