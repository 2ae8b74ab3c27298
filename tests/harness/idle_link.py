"""A pair whose link rests: the hub has no source of the leaf and no consumer for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from agent.config import LinkConfig
from agent.leaf.link import controller
from agent.leaf.link.command_mirror import controller as command_controller
from agent.leaf.link.command_mirror import rest
from agent.leaf.link.status import LinkState
from tests.harness.agents import leaf_config
from tests.harness.linked_pair import QUICK, LinkedPair, open_pair
from tests.harness.servers import ServerPair
from tests.harness.wait import until


@pytest.fixture(autouse=True)
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link rests after half a second; a module that imports this has it in each of its tests."""
    monkeypatch.setattr(LinkConfig, "rest_seconds", lambda *_: 0.5)
    monkeypatch.setattr(LinkConfig, "announce_seconds", 1.5)
    monkeypatch.setattr(controller, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(command_controller, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(rest, "SETTLE_SECONDS", 2.5)


@asynccontextmanager
async def idle_pair(
    servers: ServerPair, tmp_path: Path, profile: Literal["normal", "thin"] = "normal"
) -> AsyncIterator[LinkedPair]:
    """A pair whose link rests."""
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK)
    config.link = LinkConfig(profile=profile)
    async with open_pair(LinkedPair, servers, config, LinkState.FLOWING) as pair:
        await pair.send(3)
        await rests(pair)
        yield pair


async def sourceless(pair: LinkedPair) -> None:
    """Return when the hub has no source of the leaf."""

    async def reached() -> bool:
        return not (await pair.hub.aggregate()).config.get("sources")

    await until(reached, "the source is gone")


async def rests(pair: LinkedPair) -> None:
    """Return when the hub has no source of the leaf, and the leaf counts as flowing."""
    await sourceless(pair)
    leaves = pair.registrar.status
    await until(lambda: leaves()["leaves"]["edge-1"]["word"] == "flowing", "a leaf at rest counts as flowing")
