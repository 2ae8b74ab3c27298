"""The hub's agent in a process that also notes how long its event loop was blocked.

`python -m bench.fleet_agent FILE run -c …` runs `petiole run -c …` and writes to FILE, each second, a row of
JSON with the longest time between two turns of the loop and what of it this thread ran (the rest went to
other processes). With PROFILE=FILE in the environment SIGUSR2 begins a profile of the loop's thread, and the
next one writes it there. With TURNS=FILE each turn in which the thread ran for more than 20 ms has a row of
JSON there, with the stacks that were seen in it.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import uvloop

_LOOK_SECONDS: Final = 0.002
_LONG: Final = 0.02
"""CPU-seconds of the loop's thread, so that other work on the machine does not count."""
_FRAMES: Final = 12
_STACKS: Final = 3


class TurnSampler:
    """Looks at the stack of the thread that makes it in long turns of the loop, until the process ends."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._began = time.thread_time()
        self._stacks: Counter[str] = Counter()
        threading.Thread(target=self._run, name="turn sampler", daemon=True).start()

    def turn(self) -> list[str]:
        """A turn has ended; returns where it was seen most often, with how many times."""
        stacks, self._stacks = self._stacks, Counter()
        self._began = time.thread_time()
        return [f"{count} x {stack}" for stack, count in stacks.most_common(_STACKS)]

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            if time.clock_gettime(self._clock) - self._began > _LONG:
                self._stacks[_text(sys._current_frames().get(self._thread))] += 1


def _text(frame: FrameType | None) -> str:
    """The innermost frames, the outermost of them first."""
    names: list[str] = []
    while frame is not None and len(names) < _FRAMES:
        code = frame.f_code
        names.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " > ".join(reversed(names))


_TICK: Final = 0.005
_WRITE_SECONDS: Final = 1.0


class LoopWatch:
    """Turns of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop, self._path = loop, path
        self._wall, self._ran = time.monotonic(), time.thread_time()
        self._longest, self._most = 0.0, 0.0
        self._written = self._wall
        turns = os.environ.get("TURNS")
        self._turns = None if turns is None else (Path(turns), TurnSampler())
        self._loop.call_later(_TICK, self._turn)

    def _turn(self) -> None:
        wall, ran = time.monotonic(), time.thread_time()
        self._longest = max(self._longest, wall - self._wall - _TICK)
        self._most = max(self._most, ran - self._ran)
        if self._turns is not None:
            self._note(wall - self._wall, ran - self._ran, *self._turns)
        if wall - self._written >= _WRITE_SECONDS:
            row = {"at": time.time(), "longest": self._longest, "ran": self._most}
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._longest, self._most, self._written = 0.0, 0.0, wall
            wall, ran = time.monotonic(), time.thread_time()
        self._wall, self._ran = wall, ran
        self._loop.call_later(_TICK, self._turn)

    def _note(self, wall: float, ran: float, path: Path, sampler: TurnSampler) -> None:
        stacks = sampler.turn()
        if ran >= _LONG:
            row = {"at": time.time(), "ran": ran, "wall": wall, "stacks": stacks}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def main(path: Path, arguments: list[str]) -> None:
    made = uvloop.new_event_loop

    def watched() -> asyncio.AbstractEventLoop:
        loop = made()
        loop.call_soon(LoopWatch, loop, path)
        if profile := os.environ.get("PROFILE"):
            _profile(loop, Path(profile))
        return loop

    uvloop.new_event_loop = watched  # type: ignore[assignment]
    from agent.cli.main import main as petiole

    sys.argv = ["petiole", *arguments]
    petiole()


def _profile(loop: asyncio.AbstractEventLoop, path: Path) -> None:
    profile = cProfile.Profile()
    on = False

    def turn() -> None:
        nonlocal on
        if on:
            profile.disable()
            profile.dump_stats(path)
        else:
            profile.enable()
        on = not on

    loop.call_soon(lambda: loop.add_signal_handler(signal.SIGUSR2, turn))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
