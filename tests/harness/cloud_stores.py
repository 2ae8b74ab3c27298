"""A store of Azure as Azurite imitates it, on the loopback, a process of its own."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyarrow import fs

from agent.demo.ports import free_port
from tests.harness.node_server import MODULES
from tests.harness.object_store import BUCKET
from tests.harness.store_faults import StoreFaults, store_faults

ACCOUNT: Final = "petioletests"
KEY: Final = base64.b64encode(b"pl4nted-k3y-of-an-Azure-account-of-tests").decode()
LAKES: Final = {"azure": "az://fleet"}
"""Where lakes may lie, by the name of their store."""
_AZURITE: Final = MODULES / "azurite" / "dist" / "src" / "blob" / "main.js"
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class CloudStore:
    """A store that runs, and the environment of who uses it; `faults` lies before it and spoils answers."""

    name: str
    environment: dict[str, str]
    faults: StoreFaults


@contextmanager
def cloud_store(name: str, directory: Path) -> Iterator[CloudStore]:
    """A store of `LAKES`. Skips the test without its program."""
    with azurite(directory) as (environment, faults):
        yield CloudStore(name, environment, faults)


@contextmanager
def azurite(directory: Path) -> Iterator[tuple[dict[str, str], StoreFaults]]:
    """Azurite with an account of its own."""
    node = shutil.which("node")
    if node is None or not _AZURITE.exists():
        pytest.skip("Azurite is missing; install npm and run: make test-lakes")
    port = free_port()
    command = [node, str(_AZURITE), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--location", str(directory / "objects"), "--blobHost", "127.0.0.1", "--blobPort", str(port)]

    def make_container() -> None:
        host = f"127.0.0.1:{port}"
        store = fs.AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=host,
            dfs_storage_authority=host,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
        store.create_dir(BUCKET)

    with ExitStack() as stack:
        given = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        stack.enter_context(_served(directory, command, given, make_container))
        faults = stack.enter_context(store_faults(f"http://127.0.0.1:{port}"))
        yield (
            {
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": faults.endpoint,
                "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            },
            faults,
        )


@contextmanager
def _served(
    directory: Path, command: Sequence[str], given: dict[str, str], prepare: Callable[[], None]
) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "store.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **given}, stdout=log, stderr=log)
    deadline = time.monotonic() + _SECONDS
    try:
        while True:
            try:
                prepare()
            except OSError:
                assert process.poll() is None, "the store has ended"
                assert time.monotonic() < deadline, "no store answers"
                time.sleep(0.1)
            else:
                break
        yield
    finally:
        process.kill()
        process.wait()
