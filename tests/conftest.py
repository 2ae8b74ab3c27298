"""Fixtures that every test may use: servers that run, and end with the test; and how tests are dealt out to
the processes of `pytest --numprocesses`."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.faults.tools import old_servers
from tests.harness.servers import ServerPair, open_server_pair

# The same examples in every run: what a change broke is told apart from what chance finds.
# How long an example takes says how busy the machine is; a hang is ended by the timeout of every test.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("unhurried")

_configure = structlog.configure


def _configure_without_cache(**options: Any) -> None:
    _configure(**{**options, "cache_logger_on_first_use": False})


# The logger of a module is made once. If it kept the processors of the test that used it first,
# `capture_logs` would see nothing of it in later tests.
structlog.configure = _configure_without_cache  # type: ignore[assignment]


_TOGETHER = (
    "tests/spark/",
    "tests/e2e/test_client_contract",
    "tests/e2e/test_hub_machines",
    "tests/e2e/test_object_store.py",
    "tests/e2e/test_store_faults.py",
    "tests/security/test_headers.py",
    "tests/docs/test_dist.py",
    "tests/upstream/",
    "tests/unit/test_walls.py",
)


class XdistScheduler(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """One test at a time to whichever process is free, but those that share what is dear to start, first of
    all, to one process: the Spark tests a Java machine, others their servers, or what they have parsed."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in _TOGETHER if nodeid.startswith(shared)), nodeid)


if "PYTEST_XDIST_WORKER" in os.environ:  # the process that deals the tests out imports none
    gc.disable()  # until all are imported, of which nothing is garbage


def pytest_collection_finish() -> None:
    """What is imported for the tests stays: the collector of garbage looks at it no more."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Nor does it look at all of it at the end of the process, to find nothing."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> XdistScheduler:
    """Keep the Spark tests together (the mark `xdist_group` of xdist 3.8 has no effect with pytest 9.2)."""
    return XdistScheduler(config, log)


@pytest.fixture(params=["2.12.7", "2.14.6", "2.15.0"])
def old_server(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """The version and the binary of a server that is too old."""
    try:
        return request.param, old_servers.old_server(request.param)
    except old_servers.NotFetchedError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[ServerPair]:
    """A hub and one leaf of the domain `edge-1`, linked."""
    async with open_server_pair(tmp_path, "edge-1") as one:
        yield one


@pytest_asyncio.fixture
async def two_leaves(tmp_path: Path) -> AsyncIterator[ServerPair]:
    """A hub and the leaves `edge-1` and `edge-2`, linked."""
    async with open_server_pair(tmp_path, "edge-1", "edge-2") as one:
        yield one
