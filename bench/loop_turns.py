"""What an event loop did in its long turns: a thread looks at the loop's stack while a turn lasts.

A turn is measured by the CPU time of the loop's thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Final

_LOOK_SECONDS: Final = 0.002
_LONG: Final = 0.02
"""CPU-seconds of a turn after which its stack is looked at."""
_FRAMES: Final = 12
_STACKS: Final = 3


class TurnSampler:
    """Looks at the thread that makes it, until the process ends."""

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
