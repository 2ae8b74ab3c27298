"""S3-compatible servers on the loopback, each a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyarrow import fs

from agent.demo.loopback import free_port
from hub_jobs.tables.places import ObjectPath

KEY, SECRET = "petiole-tests", "a-secret-of-tests"
BUCKET: Final = "fleet"
GATEWAY: Final = os.environ.get("VERSITYGW") or shutil.which("versitygw")
"""A whole S3 server: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"""
_SECONDS: Final = 60.0


@contextmanager
def imitation(directory: Path) -> Iterator[dict[str, str]]:
    """moto, which has S3's answers and keeps all in memory; the environment of who uses it."""
    port = free_port()
    command = [sys.executable, "-m", "tests.harness.moto_store", str(port)]
    with _served(directory, command, port) as environment:
        yield environment


@contextmanager
def gateway(directory: Path) -> Iterator[dict[str, str]]:
    """versitygw over a directory; the environment of who uses it."""
    assert GATEWAY is not None
    port = free_port()
    objects = directory / "objects"
    objects.mkdir()
    command = [GATEWAY, "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(objects)]
    with _served(directory, command, port) as environment:
        yield environment


@contextmanager
def _served(directory: Path, command: Sequence[str], port: int) -> Iterator[dict[str, str]]:
    endpoint = f"127.0.0.1:{port}"
    given = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with (directory / "store.log").open("wb") as log:
        process = subprocess.Popen(command, env=given, stdout=log, stderr=log)
    try:
        _make_bucket(process, endpoint)
        credentials = directory / "credentials"
        credentials.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        yield {
            "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
            "AWS_ENDPOINT_URL": f"http://{endpoint}",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(process: subprocess.Popen[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        store = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=endpoint,
            scheme="http",
            allow_bucket_creation=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        try:
            store.create_dir(BUCKET)
        except OSError:
            assert process.poll() is None, "the store has ended"
            assert time.monotonic() < deadline, f"no store answers at {endpoint}"
            time.sleep(0.1)
        else:
            return


def names(lake: ObjectPath, table: str) -> list[str]:
    """The Parquet files that lie below a table, named by a commit or not."""
    found = lake.store.get_file_info(fs.FileSelector((lake / table).key))
    return sorted(one.base_name for one in found if one.base_name.endswith(".parquet"))
