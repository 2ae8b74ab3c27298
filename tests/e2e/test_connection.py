"""A connection to a local server that is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from agent.config.keys import ensure_key
from agent.demo.ports import free_port
from agent.jetstream.connection import connected


async def test_a_server_that_is_away_is_known_to_be_away_without_a_minute_of_tries(tmp_path: Path) -> None:
    ensure_key(tmp_path / "seed")
    with pytest.raises(NatsError):
        async with asyncio.timeout(30), connected(f"nats://127.0.0.1:{free_port()}", tmp_path / "seed", "x"):
            pytest.fail("nobody listens there")
