"""The hub's agent in a process that also notes how long its event loop was blocked.

`python -m bench.fleet_agent FILE run -c …` runs `petiole run -c …` and writes to FILE, each second, a row of
JSON with the longest time between two turns of the loop and what of it this thread ran (the rest went to
other processes).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

_TICK: Final = 0.005
_WRITE_SECONDS: Final = 1.0


class LoopWatch:
    """Turns of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop, self._path = loop, path
        self._wall, self._ran = time.monotonic(), time.thread_time()
        self._longest, self._most = 0.0, 0.0
        self._written = self._wall
        self._loop.call_later(_TICK, self._turn)

    def _turn(self) -> None:
        wall, ran = time.monotonic(), time.thread_time()
        self._longest = max(self._longest, wall - self._wall - _TICK)
        self._most = max(self._most, ran - self._ran)
        if wall - self._written >= _WRITE_SECONDS:
            row = {"at": time.time(), "longest": self._longest, "ran": self._most}
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._longest, self._most, self._written = 0.0, 0.0, wall
            wall, ran = time.monotonic(), time.thread_time()
        self._wall, self._ran = wall, ran
        self._loop.call_later(_TICK, self._turn)


def main(path: Path, arguments: list[str]) -> None:
    made = uvloop.new_event_loop

    def watched() -> asyncio.AbstractEventLoop:
        loop = made()
        loop.call_soon(LoopWatch, loop, path)
        return loop

    uvloop.new_event_loop = watched  # type: ignore[assignment]
    from agent.cli.main import main as petiole

    sys.argv = ["petiole", *arguments]
    petiole()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
