"""Builds and drives bench/http_load.c: a load over HTTP that costs a few microseconds a request, so that what
is measured has the machine's cores to itself."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAMP: Final = "1000000000000"
"""Stands in a request for when it was due: `STAMP` plus microseconds of the monotonic clock."""
_SOURCE: Final = Path(__file__).parent / "http_load.c"
_BUILT: Final = Path("build/http_load")


@dataclass(frozen=True, slots=True)
class Answered:
    """The requests of a stretch of time that were answered as stored, and their latency in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    most: float


class HttpLoad:
    """A load that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._since = time.monotonic()

    def answered(self) -> Answered:
        """Since the call before, or the start. Raises `RuntimeError` where the load has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            count, *times = self._process.stdout.readline().split()
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the load ended by itself: {error}") from error
        began, self._since = self._since, time.monotonic()
        p50, p99, most = (float(one) / 1000 for one in times)
        return Answered(int(count), self._since - began, p50, p99, most)


@contextmanager
def http_load(
    port: int, connections: int, requests: Sequence[bytes], rate: float = 0.0
) -> Iterator[HttpLoad]:
    """Send these requests in turns to a port of this machine as long as the context lasts: as fast as answers
    come, or `rate` a second. Raises `RuntimeError` without a compiler."""
    program = _build()
    with tempfile.NamedTemporaryFile(prefix="petiole-bench-") as file:
        file.write(b"".join(b"%d\n%b" % (len(one), one) for one in requests))
        file.flush()
        command = [str(program), str(port), str(connections), str(rate), file.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield HttpLoad(process)
            finally:
                process.kill()


def _build() -> Path:
    if not _BUILT.exists() or _BUILT.stat().st_mtime < _SOURCE.stat().st_mtime:
        if (compiler := shutil.which("cc")) is None:
            raise RuntimeError(
                "the load has to be compiled and there is no cc: apt-get install gcc libc6-dev"
            )
        _BUILT.parent.mkdir(exist_ok=True)
        subprocess.run([compiler, "-O2", "-Wall", "-o", str(_BUILT), str(_SOURCE)], check=True)
    return _BUILT
