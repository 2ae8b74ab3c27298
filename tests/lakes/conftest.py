"""The stores, each as others imitate it, and a lake in it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hub_jobs.tables.places import ObjectPath
from tests.faults.slow.test_object_store import stored
from tests.harness.cloud_stores import LAKES, CloudStore, cloud_store
from tests.harness.servers import open_server_pair
from tests.spark.conftest import spark as spark

STORES = ("azure", "google")
BATCHES, READINGS = 60, 10


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CloudStore | str]]:
    """Every store that can run here, or why it can't. What tells jobs of the stores is in the environment,
    which Spark's workers have as it is when its session begins."""
    with ExitStack() as stack:
        found: dict[str, CloudStore | str] = {}
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in STORES:
            try:
                store = stack.enter_context(cloud_store(name, tmp_path_factory.mktemp(name)))
            except pytest.skip.Exception as missing:
                found[name] = str(missing)
                continue
            found[name] = store
            for variable, value in store.environment.items():
                patch.setenv(variable, value)
        yield found


@pytest.fixture(params=STORES)
def cloud(request: pytest.FixtureRequest, clouds: dict[str, CloudStore | str]) -> Iterator[CloudStore]:
    """One of the stores; it does as it is asked again afterwards."""
    store = clouds[request.param]
    if isinstance(store, str):
        pytest.skip(store)
    yield store
    store.faults.release()
    store.faults.seen()


@pytest.fixture
def lake(cloud: CloudStore, tmp_path: Path) -> ObjectPath:
    """An empty lake of this test's own."""
    return ObjectPath(f"{LAKES[cloud.name]}/{tmp_path.name}")


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[list[str]]:
    """A hub that holds batches; the options by which jobs reach it."""
    async with open_server_pair(tmp_path, "edge-1") as servers:
        agent, registrar = await servers.leaf.connect("agent"), await servers.hub.connect("registrar")
        await stored(agent, registrar, BATCHES, READINGS)
        for client in (agent, registrar):
            await client.close()  # a job that runs in this very process keeps the loop from running
        yield ["--server", servers.hub.url, "--seed-file", str(servers.hub.keys["jobs"])]
