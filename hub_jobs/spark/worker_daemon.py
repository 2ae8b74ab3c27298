"""The process from which Spark forks the Python workers of one machine. PySpark's own takes PySpark from an
archive, which Python compiles again at each start, and each worker then imports the modules of the jobs by
itself. This one takes PySpark from where it is installed and imports those modules once, before it forks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ARCHIVES: Final = Path("pyspark", "python", "lib")
"""Where an installed PySpark has its archives, below the directory that it is installed in."""
_MODULES: Final = ("hub_jobs.lean_imports", "hub_jobs.ingest.bronze", "hub_jobs.refine.task")
"""What most tasks need."""


def without_archives(path: Sequence[str]) -> list[str]:
    """A module search path without the archives of a PySpark that it finds installed as well."""
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
