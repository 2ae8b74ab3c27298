"""Fixtures that every test may use: servers that run, and end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.rigs import old_servers
from tests.servers import World, open_world


@pytest.fixture(params=["2.12.7", "2.14.6", "2.15.0"])
def old_server(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The version and the binary of a server that is too old."""
    try:
        return request.param, old_servers.old_server(request.param)
    except old_servers.NotFetchedError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A hub and one leaf of the domain `edge-1`, linked."""
    async with open_world(tmp_path, "edge-1") as one:
        yield one


@pytest_asyncio.fixture
async def two_leaves(tmp_path: Path) -> AsyncIterator[World]:
    """A hub and the leaves `edge-1` and `edge-2`, linked."""
    async with open_world(tmp_path, "edge-1", "edge-2") as one:
        yield one
