"""`python -m hub_jobs.spark.class_archive`: makes the archive of `java_options` in a process of its own, in
which a session starts and works as in a job."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hub_jobs.spark.connect_tasks import REMOTE
from hub_jobs.spark.java import JavaError, check_java
from hub_jobs.spark.java_options import TRAINING, archive, draft_path, environment_name
from hub_jobs.spark.session import run_tasks, session

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_SECONDS: Final = 600.0


def make() -> str:
    """Make the archive unless it exists or is being made; returns a report. Raises `OSError`."""
    if REMOTE in os.environ:
        return f"{REMOTE} is set: the jobs start no Java here"
    if (path := archive()) is not None:
        return f"{path} is there"
    start = draft_path()
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
    environment = {**os.environ, TRAINING: str(draft)}
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
    for other in kept.parent.glob(f"{environment_name()}-*"):
        if other != kept:
            other.unlink(missing_ok=True)


def _train() -> None:
    spark = session("refine")
    run_tasks(spark, abs, [1, 2])
    spark.range(1).mapInArrow(_unchanged, "id long").collect()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def main() -> int:
    """Make the archive and print the result; 1 on failure."""
    if TRAINING in os.environ:
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
