"""Runs `reaper.py PARENT GRACE COMMAND…`, and ends the command with all its descendants.

It sends SIGTERM, then SIGKILL after GRACE seconds, on its own SIGTERM or when PARENT dies. As subreaper
(PR_SET_CHILD_SUBREAPER) it adopts orphans that left the process group. The exit code is the command's, or 128
plus the signal. It imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

_PDEATHSIG: Final = 1
_SUBREAPER: Final = 36
_WATCHED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AGAIN: Final = 0.05
_CANNOT_START: Final = 127


def main(parent: int, grace: float, command: list[str]) -> int:
    """Run the command and wait for all its descendants."""
    _prctl(_SUBREAPER, 1)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return _CANNOT_START
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _close_others()
    child = os.fork()
    if not child:
        _become(command)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    # Held open here they would hide that the command has closed them.
    os.close(0)
    os.close(1)
    return _watch(child, grace)


def _close_others() -> None:
    """Close other descriptors: uvloop leaves copies of the outputs open, which would hide their closing."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))


def _become(command: list[str]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - an argument list, and no shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
    os._exit(_CANNOT_START)


def _watch(child: int, grace: float) -> int:
    code = 0
    deadline: float | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
        if pid:
            if pid == child and deadline is None:
                deadline = time.monotonic() + grace
                _tell_all(child, signal.SIGTERM)
            continue
        if deadline is not None and time.monotonic() >= deadline:
            _tell_all(child, signal.SIGKILL)
            got = signal.sigtimedwait(_WATCHED, _AGAIN)
        else:
            got = signal.sigtimedwait(
                _WATCHED, 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
            )
        if got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + grace
            _tell_all(child, signal.SIGTERM)


def _tell_all(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)
    for pid in _children():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)


def _children() -> list[int]:
    """Return the child processes, including adopted orphans."""
    me = os.getpid()
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # pid (name) state parent …, and the name may hold anything
                if int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1]) == me:
                    children.append(int(entry.name))
    return children


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
