"""collectd with about the groups that the input `host` takes, each second, written to files that nobody
syncs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

_PLUGINS: Final = (
    "cpu",
    "df",
    "disk",
    "fhcount",
    "interface",
    "load",
    "memory",
    "processes",
    "protocols",
    "swap",
    "thermal",
    "uptime",
    "csv",
)
_END_SECONDS: Final = 20.0


def installed() -> bool:
    """Whether Debian's collectd is here."""
    return shutil.which("collectd") is not None


@contextmanager
def collectd(directory: Path) -> Iterator[psutil.Process]:
    """The daemon with its files in a directory."""
    directory.mkdir()
    config = directory / "collectd.conf"
    config.write_text(
        "Interval 1\n"
        f'BaseDir "{directory}"\nPIDFile "{directory / "pid"}"\n'
        + "".join(f"LoadPlugin {name}\n" for name in _PLUGINS)
        + f'<Plugin csv>\n  DataDir "{directory / "values"}"\n</Plugin>\n'
    )
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(["collectd", "-f", "-C", str(config)], stdout=log, stderr=log)
    try:
        yield psutil.Process(daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait(_END_SECONDS)
