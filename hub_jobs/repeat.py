"""A job once, or again and again in one process, whose Spark session stays warm."""

from __future__ import annotations

import argparse
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from agent.contract import Exit
from hub_jobs.exits import ended, say

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM: Final = re.compile(r"([0-9]{1,6})(ms|s|m|h)\Z")


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--once`, which is the default, or `--every`, as `every` in seconds or None."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", dest="every", action="store_const", const=None, help="one run (the default)")
    how.add_argument(
        "--every",
        type=_seconds,
        metavar="TIME",
        help="a run every so often, such as 30s or 5m, until SIGTERM; nothing to do costs no JVM, and the "
        "session stays warm once there was something",
    )


def repeated(name: str, job: Callable[[], Exit], every: float | None) -> Exit:
    """Run a job as `exits.ended` does: once, or each `every` seconds until SIGTERM or SIGINT, which let the
    run under way come to its end. What goes wrong in one run is said, and the next one tries again; only
    wrong usage ends them. Returns `LOSS` when any run found one. To be called in the main thread."""
    if every is None:
        return ended(name, job)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    lost = False
    while not stopping.is_set():
        due = time.monotonic() + every
        code = ended(name, job)
        if code is Exit.USAGE:
            return code
        lost = lost or code is Exit.LOSS
        stopping.wait(max(0.0, due - time.monotonic()))
    say(name, "stopped")
    return Exit.LOSS if lost else Exit.WELL


def _seconds(text: str) -> float:
    found = _FORM.match(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 500ms, 30s, 5m or 1h")
    return int(found[1]) * _UNITS[found[2]]
