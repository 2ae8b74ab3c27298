"""Azure's and Google's stores as others imitate them, on the loopback, each a process of its own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

import pytest
from pyarrow import fs

from agent.demo.ports import free_port
from tests.harness.gcs_xml import gcs_xml
from tests.harness.object_store import BUCKET
from tests.harness.plant_servers import MODULES
from tests.harness.store_faults import StoreFaults, store_faults

ACCOUNT: Final = "petioletests"
KEY: Final = base64.b64encode(b"pl4nted-k3y-of-an-Azure-account-of-tests").decode()
LAKES: Final = {
    "azure": "az://fleet",
    "google": "gs://fleet",
}
"""Where lakes may lie, by the name of their store."""
_AZURITE: Final = MODULES / "azurite" / "dist" / "src" / "blob" / "main.js"
_FAKE_GCS: Final = Path(sys.executable).parent / "fake-gcs-server"
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
    with azurite(directory) if name == "azure" else google(directory) as (environment, faults):
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
def google(directory: Path) -> Iterator[tuple[dict[str, str], StoreFaults]]:
    """fake-gcs-server, with what it lacks of the XML API before it. It asks for no credential."""
    if not _FAKE_GCS.exists():
        pytest.skip("fake-gcs-server is missing; install Go and run: make test-lakes")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_FAKE_GCS), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-log-level", "warn"]

    def make_bucket() -> None:
        body, kind = json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
        with urlopen(Request(f"{endpoint}/storage/v1/b?project=tests", body, kind), timeout=5):
            pass

    with ExitStack() as stack:
        stack.enter_context(_served(directory, command, {}, make_bucket))
        xml = stack.enter_context(gcs_xml(endpoint))
        faults = stack.enter_context(store_faults(xml))
        account = directory / "account.json"
        known = {"gcs_base_url": faults.endpoint, "disable_oauth": True}
        known |= {"client_email": "", "private_key": KEY, "private_key_id": ""}
        account.write_text(json.dumps(known))
        yield {"GOOGLE_SERVICE_ACCOUNT": str(account)}, faults


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
