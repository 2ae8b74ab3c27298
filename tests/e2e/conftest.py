"""An agent that does not run yet, in this process or as its own; both sides of a link by hand; servers that
the tests of one module share, in the loop of that module; what a test alone has logged."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agent.config import Config
from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.agents import StreamProbe, leaf_config, probe_stream
from tests.harness.commands import Desk, open_desk
from tests.harness.linked_pair import QUICK
from tests.harness.places import IDS, PLACES, PREFIXES, Place
from tests.harness.registrar import HubHand, LeafHand, hub_of
from tests.harness.seed_servers import ACCOUNTS, Seed, open_seed
from tests.harness.servers import ServerPair

_OWN = ", ".join(f'"{mine}.>": "{theirs}.>"' for mine, theirs in PREFIXES.items())
MAPPED = ACCOUNTS.replace("jetstream: enabled", f"jetstream: enabled, mappings: {{ {_OWN} }}")
"""The document's accounts, with prefixes of one's own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def contract_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seed]:
    """A hub and a leaf for the client document."""
    async with open_seed(tmp_path_factory.mktemp("contract"), accounts=MAPPED) as one:
        yield one


@pytest_asyncio.fixture(params=PLACES, ids=IDS, loop_scope="module")
async def at(request: pytest.FixtureRequest, contract_servers: Seed) -> Place:
    """Each domain, from either side."""
    side, domain = request.param
    return Place(await contract_servers.connect(side), side, domain)


@pytest.fixture
def config(servers: ServerPair, tmp_path: Path) -> Config:
    """An agent that seals its batches soon, beside the first leaf's server."""
    return leaf_config(servers.leaf, tmp_path / "state", QUICK)


@pytest_asyncio.fixture
async def hub(servers: ServerPair) -> HubHand:
    """The hub's side, whose registrar does not run yet."""
    return await hub_of(servers)


@pytest_asyncio.fixture
async def hand(servers: ServerPair) -> LeafHand:
    """The side of the first leaf, with its stream and link consumer."""
    return await LeafHand.make(servers.leaf)


@pytest_asyncio.fixture
async def desk(servers: ServerPair) -> AsyncIterator[Desk]:
    """A hub that takes commands, and hands at both ends."""
    async with open_desk(servers) as one:
        yield one


@pytest_asyncio.fixture
async def probe(servers: ServerPair) -> StreamProbe:
    """What the stream of the first leaf holds."""
    return await probe_stream(servers.leaf)


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[Agent]:
    """A leaf with the inputs http, file and host, which does not run yet and whose hub does not run."""
    member = plan.member(tmp_path, "edge-1")
    agent = Agent(member, plan.leaf_toml(member, free_port()))
    yield agent
    agent.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged from here on: asyncio tells of a task that an earlier test left when it is collected."""
    gc.collect()
    caplog.clear()
    return caplog
