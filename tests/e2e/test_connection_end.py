"""Ending a connection to the NATS server."""

from __future__ import annotations

from pathlib import Path

import nats
import uvloop

from agent.demo.loopback import free_port
from agent.jetstream.connection import abort, end
from tests.harness.configured import ConfiguredServer


def test_a_connection_that_breaks_with_something_left_to_send_ends_without_an_error(tmp_path: Path) -> None:
    uvloop.run(_break_and_end(tmp_path))


async def _break_and_end(directory: Path) -> None:
    port = free_port()
    server = ConfiguredServer(directory, "the server", port, f'listen: "127.0.0.1:{port}"\n')
    await server.start()
    try:
        client = await nats.connect(server.url, allow_reconnect=False)
        await client.publish("a", b"left to send")
        abort(client)
        await end(client)
        assert client.is_closed
    finally:
        await server.kill()
