"""The classes that Spark's Java machine loads at each start, kept as its own linker leaves them (class data
sharing): a start then takes half the processor time. `python -m hub_jobs.spark.class_archive` makes the
archive where there is none for this Java, this Spark and this environment; the jobs take it where it is
there. Under systemd the unit `petiole-job-class-archive` does so, which every job with Spark starts before
itself.

The Java machine checks the archive itself, and starts without one that another Java or other jars have made;
but one that was cut off would end it, so the name has the size. Under spark-submit it runs before a job can
say anything: see docs/where-it-runs.md.
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
"""For jobs whose work is Python's: neither a second compiler nor threads that collect garbage beside."""
_LIGHT_JOBS: Final = ("ingest", "refine")
_TOLERANT: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xshare:auto", "-Xlog:disable")
"""What is wrong with an archive is no fault of a job, and would stand in its output."""
_DIRECTORY: Final = "CACHE_DIRECTORY"
"""The directory that systemd gives a unit."""
_TRAINING: Final = "PETIOLE_CLASS_ARCHIVE"
"""Where the process that `make` starts is to leave its classes."""
_MOST_SECONDS: Final = 600.0


def java_options(job: str) -> str:
    """How the Java machine of a job is started."""
    light = _LIGHT if job in _LIGHT_JOBS else ()
    if draft := os.environ.get(_TRAINING):
        return " ".join([*_TOLERANT, *light, f"-XX:ArchiveClassesAtExit={draft}"])
    path = archive()
    if path is None:
        return " ".join(light)
    return " ".join([*_TOLERANT, *light, f"-XX:SharedArchiveFile={path}"])


def archive() -> Path | None:
    """The whole archive of this Java and this Spark, None where there is none."""
    draft = _draft()
    try:
        found = sorted(draft.parent.glob(f"{draft.name}-*.jsa")) if draft is not None else []
        return next((path for path in found if path.stem.endswith(f"-{path.stat().st_size}")), None)
    except OSError:
        return None


def _draft() -> Path | None:
    """What the path of the archive begins with; None without a Java, a Spark or a place for one."""
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
    """What an archive depends on. Raises `OSError`."""
    found = java() or Path("/nonexistent/java")
    home = os.environ.get("SPARK_HOME") or Path(getattr(find_spec("pyspark"), "origin", None) or "/").parent
    modules = found.resolve().parents[1] / "lib" / "modules"
    for file in (modules, *sorted(Path(home, "jars").iterdir())):
        state = file.stat()
        yield f"{file} {state.st_size} {state.st_mtime_ns}"


def make() -> str:
    """Make the archive, if it is not there and no other process makes it; says what came of it. Raises
    `OSError`."""
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
    """Make the archive and delete what there is of others and of processes that were killed."""
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
    """Start a session and do what the jobs do in it."""
    from hub_jobs.spark.session import run_tasks, session

    spark = session("refine")
    run_tasks(spark, abs, [1, 2])
    spark.range(1).mapInArrow(_unchanged, "id long").collect()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def main() -> int:
    """Make the archive and say so; 1 where it can't be made."""
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
