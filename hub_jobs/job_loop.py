"""A job once, or again and again in one process, whose Spark session stays warm. A signal that stops it lets
it come to the end of a commit."""

from __future__ import annotations

import argparse
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from agent.contract import Exit
from hub_jobs.exits import ended, say

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
Stop = Callable[[], bool]
"""Whether a job is to end before it begins another commit."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
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


def never() -> bool:
    """For a job that nothing stops."""
    return False


def run_job(name: str, job: Callable[[Stop], Exit], every: float | None) -> Exit:
    """Run a job as `exits.ended` does: once, or each `every` seconds. SIGTERM or SIGINT ends it after the
    commit under way, for which the job looks at its argument; a second one ends it at once. What goes wrong
    in one run is said, and the next one tries again; only wrong usage ends them. Returns the code of a single
    run, and of several `LOSS` when any found one. Outside of the main thread it handles no signals."""
    lost = False
    with _stopped_by_signals() as stopping:
        while not stopping.is_set():
            due = time.monotonic() + (every or 0.0)
            code = ended(name, lambda: job(stopping.is_set))
            if every is None and stopping.is_set():
                say(name, "stopped")
            if every is None or code is Exit.USAGE:
                return code
            lost = lost or code is Exit.LOSS
            stopping.wait(max(0.0, due - time.monotonic()))
    say(name, "stopped")
    return Exit.LOSS if lost else Exit.WELL


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that a signal sets. The first one gives the signals back to what handled them before."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        stopping.set()
        restore()

    for number in _SIGNALS:
        before[number] = signal.signal(number, stop)
    try:
        yield stopping
    finally:
        restore()


def _seconds(text: str) -> float:
    found = _FORM.match(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 500ms, 30s, 5m or 1h")
    return int(found[1]) * _UNITS[found[2]]
