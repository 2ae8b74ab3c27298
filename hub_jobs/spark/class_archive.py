"""Keeps the Java classes of Spark in a class data sharing archive, which halves the processor time of a
start.

`python -m hub_jobs.spark.class_archive` makes it for this Java, Spark and environment; the systemd unit
`petiole-job-class-archive` runs that before Spark jobs. Java ignores an archive of another Java or other
jars, but a truncated one ends it, so the file name contains the size. docs/where-it-runs.md covers
spark-submit.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hub_jobs.spark.connect_tasks import REMOTE
from hub_jobs.spark.java import JavaError, check_java, java

if TYPE_CHECKING:
    import pyarrow as pa

_LIGHT: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For jobs that work in Python: one compiler, no parallel garbage collection."""
_LIGHT_JOBS: Final = ("ingest", "refine")
_TOLERANT: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xshare:auto", "-Xlog:disable")
"""Keeps archive faults out of a job's output."""
_DIRECTORY: Final = "CACHE_DIRECTORY"
"""The directory that systemd gives a unit."""
_TRAINING: Final = "PETIOLE_CLASS_ARCHIVE"
"""Where the process of `make` writes its classes."""
_MOST_SECONDS: Final = 600.0


def java_options(job: str) -> str:
    """Return the Java options of a job."""
    light = _LIGHT if job in _LIGHT_JOBS else ()
    if draft := os.environ.get(_TRAINING):
        return " ".join([*_TOLERANT, *light, f"-XX:ArchiveClassesAtExit={draft}"])
    path = archive()
    if path is None:
        return " ".join(light)
    return " ".join([*_TOLERANT, *light, f"-XX:SharedArchiveFile={path}"])


def archive() -> Path | None:
    """Return this Java's and Spark's complete archive, None if missing."""
    draft = _draft()
    try:
        found = sorted(draft.parent.glob(f"{draft.name}-*.jsa")) if draft is not None else []
        return next((path for path in found if path.stem.endswith(f"-{path.stat().st_size}")), None)
    except OSError:
        return None


def _draft() -> Path | None:
    """Return the archive's path prefix; None without Java, Spark or directory."""
    given = os.environ.get(_DIRECTORY, "").partition(":")[0]
    try:
        cache = given or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        key = hashlib.blake2b("\0".join(_parts()).encode(), digest_size=8).hexdigest()
    except (OSError, RuntimeError):
        return None
    path = Path(cache).absolute() / "petiole" / f"{_environment()}-{key}"
    return path if all(letter.isalnum() or letter in "/._-" for letter in str(path)) else None


def _environment() -> str:
    return "classes-" + hashlib.blake2b(sys.prefix.encode(), digest_size=4).hexdigest()


def _parts() -> Iterator[str]:
    """Yield the inputs of an archive. Raises `OSError`."""
    found = java() or Path("/nonexistent/java")
    home = os.environ.get("SPARK_HOME") or Path(getattr(find_spec("pyspark"), "origin", None) or "/").parent
    modules = found.resolve().parents[1] / "lib" / "modules"
    for file in (modules, *sorted(Path(home, "jars").iterdir())):
        state = file.stat()
        yield f"{file} {state.st_size} {state.st_mtime_ns}"


def make() -> str:
    """Make the archive unless it exists or is being made; returns a report. Raises `OSError`."""
    if REMOTE in os.environ:
        return f"{REMOTE} is set: the jobs start no Java here"
    if (path := archive()) is not None:
        return f"{path} is there"
    start = _draft()
    if start is None:
        raise OSError("there is no Java, no Spark, or no place for the archive: set XDG_CACHE_HOME")
    start.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(start.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have ended with it since.
        return f"{path} is there" if (path := archive()) is not None else _made(start)
    except BlockingIOError:
        return f"another process makes an archive in {start.parent}"
    finally:
        os.close(directory)


def _made(start: Path) -> str:
    """Make the archive and delete outdated and abandoned files."""
    draft, began = start.with_suffix(f".{os.getpid()}"), time.monotonic()
    program = [sys.executable, "-m", "hub_jobs.spark.class_archive"]
    environment = {**os.environ, _TRAINING: str(draft)}
    _delete_others(draft)
    try:
        # The end of its output is that of the Java machine, which writes the archive last.
        done = subprocess.run(program, env=environment, capture_output=True, timeout=_MOST_SECONDS)
        if done.returncode or not draft.exists():
            raise OSError(f"no archive was made: {done.stderr.decode(errors='replace')[-2000:]}")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        path = draft.replace(start.with_name(f"{start.name}-{draft.stat().st_size}.jsa"))
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no archive was made in {_MOST_SECONDS:g} s") from error
    finally:
        draft.unlink(missing_ok=True)
    return f"{path} was made in {time.monotonic() - began:.0f} s"


def _delete_others(kept: Path) -> None:
    for other in kept.parent.glob(f"{_environment()}-*"):
        if other != kept:
            other.unlink(missing_ok=True)


def _train() -> None:
    from hub_jobs.spark.session import run_tasks, session

    spark = session("refine")
    run_tasks(spark, abs, [1, 2])
    spark.range(1).mapInArrow(_unchanged, "id long").collect()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def main() -> int:
    """Make the archive and print the result; 1 on failure."""
    if _TRAINING in os.environ:
        _train()
        return 0
    try:
        check_java()
        print(f"class_archive: {make()}")
    except (JavaError, OSError) as error:
        print(f"class_archive: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
