"""Fixtures that every test may use: servers that run, and end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.servers import World, open_world


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
