"""Starting a program that is to outlive this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

_SUPERVISOR = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

# Only its parent can reap a child that has ended, whoever watches it by then; and a Popen that is collected
# complains that its process still runs, which is what is wanted here.
_children: dict[int, subprocess.Popen[bytes]] = {}


def spawn(command: list[str], directory: Path, output: Path) -> int:
    """Start a program in a session of its own, without this process's sockets, terminal or supervisor, and
    return its process id. Its output replaces the file `output`. Raises `OSError`."""
    with output.open("wb") as written:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env={name: value for name, value in os.environ.items() if name not in _SUPERVISOR},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return child.pid


def reap(pid: int) -> None:
    """Take note that a process has ended, where it was a child of this one."""
    child = _children.pop(pid, None)
    if child is not None:
        child.wait()
        return
    # It may be the child of this process before it became another program (the agent starts itself again).
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
