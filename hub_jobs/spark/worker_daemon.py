"""Forks Spark's Python workers after importing PySpark and the jobs' modules once.

PySpark's own daemon recompiles PySpark from an archive at each start, and each worker imports the modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ARCHIVES: Final = Path("pyspark", "python", "lib")
"""Places of archives in an installed PySpark."""
_MODULES: Final = ("hub_jobs.lean_imports", "hub_jobs.ingest.bronze", "hub_jobs.refine.task")
"""Modules that most tasks need."""


def without_archives(path: Sequence[str]) -> list[str]:
    """Return a search path without archives of an installed PySpark."""
    archives = {Path(entry, _ARCHIVES) for entry in path}
    return [entry for entry in path if not (entry.endswith(".zip") and Path(entry).parent in archives)]


def main() -> None:
    """Fork workers until Spark closes standard input."""
    sys.path[:] = without_archives(sys.path)
    for name in _MODULES:
        importlib.import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
