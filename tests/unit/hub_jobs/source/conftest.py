"""A server for the tests of the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from tests.unit.hub_jobs.source.plain import PlainServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PlainServer]:
    """A running server without identities."""
    one = PlainServer(tmp_path / "server")
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture
def conn(server: PlainServer) -> Iterator[Connection]:
    """A connection to `server`."""
    with Connection(Server(server.url)) as one:
        yield one
