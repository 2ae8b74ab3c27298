"""Starts the Java of a job with a class data sharing archive, which halves the processor time of a start.

`python -m hub_jobs.spark.class_archive` makes it for this Java, Spark and environment; the systemd unit
`petiole-job-class-archive` runs that before Spark jobs. Java ignores an archive of another Java or other
jars, but a truncated one ends it, so the file name contains the size. docs/where-it-runs.md covers
spark-submit.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hub_jobs.spark.java import java

_LIGHT: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For jobs that work in Python: one compiler, no parallel garbage collection."""
_LIGHT_JOBS: Final = ("ingest", "refine")
_TOLERANT: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xshare:auto", "-Xlog:disable")
"""Keeps archive faults out of a job's output."""
_DIRECTORY: Final = "CACHE_DIRECTORY"
"""The directory that systemd gives a unit."""
TRAINING: Final = "PETIOLE_CLASS_ARCHIVE"
"""Where the process of `make` writes its classes."""


def java_options(job: str) -> str:
    """Return the Java options of a job."""
    light = _LIGHT if job in _LIGHT_JOBS else ()
    if draft := os.environ.get(TRAINING):
        return " ".join([*_TOLERANT, *light, f"-XX:ArchiveClassesAtExit={draft}"])
    path = archive()
    if path is None:
        return " ".join(light)
    return " ".join([*_TOLERANT, *light, f"-XX:SharedArchiveFile={path}"])


def archive() -> Path | None:
    """Return this Java's and Spark's complete archive, None if missing."""
    draft = draft_path()
    try:
        found = sorted(draft.parent.glob(f"{draft.name}-*.jsa")) if draft is not None else []
        return next((path for path in found if path.stem.endswith(f"-{path.stat().st_size}")), None)
    except OSError:
        return None


def draft_path() -> Path | None:
    """Return the archive's path prefix; None without Java, Spark or directory."""
    given = os.environ.get(_DIRECTORY, "").partition(":")[0]
    try:
        cache = given or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        key = hashlib.blake2b("\0".join(_parts()).encode(), digest_size=8).hexdigest()
    except (OSError, RuntimeError):
        return None
    path = Path(cache).absolute() / "petiole" / f"{environment_name()}-{key}"
    return path if all(letter.isalnum() or letter in "/._-" for letter in str(path)) else None


def environment_name() -> str:
    """Return the prefix of all archive names of this environment."""
    return "classes-" + hashlib.blake2b(sys.prefix.encode(), digest_size=4).hexdigest()


def _parts() -> Iterator[str]:
    """Yield the inputs of an archive. Raises `OSError`."""
    found = java() or Path("/nonexistent/java")
    home = os.environ.get("SPARK_HOME") or Path(getattr(find_spec("pyspark"), "origin", None) or "/").parent
    modules = found.resolve().parents[1] / "lib" / "modules"
    for file in (modules, *sorted(Path(home, "jars").iterdir())):
        state = file.stat()
        yield f"{file} {state.st_size} {state.st_mtime_ns}"
