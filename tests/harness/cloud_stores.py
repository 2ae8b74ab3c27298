"""Azure's and Google's stores as others imitate them, on the loopback, each a process of its own. Before
fake-gcs-server, which knows the puts of the JSON API alone, stand those of Google's XML API: a put with a
precondition, an upload in parts, and a list that begins after a name. The server decides which put with a
precondition it takes."""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen

import pytest
from pyarrow import fs

from agent.demo.loopback import free_port
from tests.harness.object_store import BUCKET
from tests.harness.plant_servers import MODULES
from tests.harness.store_faults import HOP, AnsweringHandler, StoreFaults, in_front, serve, store_faults

_SECONDS: Final = 60.0
_CONDITION: Final = "x-goog-if-generation-match"


def gcs_xml(server: str) -> AbstractContextManager[str]:
    """The URL before the server at this one."""
    return in_front(server, __name__)


class _XmlHandler(AnsweringHandler):
    server_address: str
    parts: Final[dict[str, dict[int, bytes]]] = {}
    numbers: Final = itertools.count(1)

    def do_PUT(self) -> None:  # noqa: N802
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        upload = asked.get("uploadId", [""])[0]
        if self.command == "POST" and "uploads" in asked:
            name = f"upload-{next(self.numbers)}"
            self.parts[name] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        elif self.command == "PUT" and upload:
            self.parts[upload][int(asked["partNumber"][0])] = body
            self.answer(200, [("ETag", f'"{asked["partNumber"][0]}"')], b"")
        elif self.command == "POST" and upload:
            parts = self.parts.pop(upload)
            status, headers, text = self._upload(b"".join(parts[number] for number in sorted(parts)))
            if status == 200:
                self._xml("CompleteMultipartUploadResult", f"<ETag>{headers['ETag']}</ETag>", headers)
            else:
                self.answer(status, headers.items(), text)
        elif self.command == "DELETE" and upload:
            self.parts.pop(upload, None)
            self.answer(204, (), b"")
        elif self.command == "PUT":
            status, headers, text = self._upload(body)
            self.answer(status, headers.items(), text)
        else:
            response, text = self._ask(self.command, self.path, body, dict(self.headers.items()))
            if after := asked.get("start-after"):
                text = _after(text, after[0])
            self.answer(response.status, response.getheaders(), text)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815

    def _upload(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Put an object by the JSON API."""
        bucket, _, name = urlsplit(self.path).path.removeprefix("/").partition("/")
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(name), safe='')}"
        if (condition := self.headers.get(_CONDITION)) is not None:
            path += f"&ifGenerationMatch={condition}"
        response, text = self._ask("POST", path, body, {"Content-Type": "application/octet-stream"})
        if response.status != 200:
            return response.status, {}, text
        made = json.loads(text)
        return 200, {"ETag": f'"{made["etag"]}"', "x-goog-generation": str(made["generation"])}, b""

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        conn = HTTPConnection(self.server_address, timeout=_SECONDS)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in HOP | {"host"}}
            conn.request(method, path, body, {**kept, "Host": self.server_address})
            response = conn.getresponse()
            return response, response.read()
        finally:
            conn.close()

    def _xml(self, kind: str, inside: str, headers: dict[str, str] | None = None) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?><{kind}>{inside}</{kind}>'
        given = {"Content-Type": "application/xml", **(headers or {})}
        self.answer(200, given.items(), text.encode())


def _after(listed: bytes, name: str) -> bytes:
    """A list of objects without those up to a name."""

    def kept(entry: re.Match[bytes]) -> bytes:
        return entry[0] if html.unescape(entry[1].decode()) > name else b""

    return re.sub(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", kept, listed)


if __name__ == "__main__":
    _XmlHandler.server_address = sys.argv[1]
    serve(_XmlHandler)


ACCOUNT: Final = "petioletests"
KEY: Final = base64.b64encode(b"pl4nted-k3y-of-an-Azure-account-of-tests").decode()
LAKES: Final = {
    "azure": "az://fleet",
    "google": "gs://fleet",
}
"""Where lakes may lie, by the name of their store."""
_AZURITE: Final = MODULES / "azurite" / "dist" / "src" / "blob" / "main.js"
_FAKE_GCS: Final = Path(sys.executable).parent / "fake-gcs-server"


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
        pytest.skip("Azurite is missing; install npm and run: make test SUITE=lakes")
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
        pytest.skip("fake-gcs-server is missing; install Go and run: make test SUITE=lakes")
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
