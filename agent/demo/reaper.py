"""Ends what the demonstration has started if the demonstration itself is killed.

Each line of its standard input is a process group to end, or a configuration whose embedded server is to
stop. If the input ends without a last line `done`, it ends them all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TextIO

GROUP, SERVER, DONE = "group", "server", "done"


def main(lines: TextIO, petiole: str) -> None:
    """Read until the input ends, then clean up unless the last line was `done`."""
    groups: list[int] = []
    servers: list[str] = []
    for line in lines:
        kind, _, value = line.strip().partition(" ")
        if kind == DONE:
            return
        if kind == GROUP:
            groups.append(int(value))
        elif kind == SERVER:
            servers.append(value)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for config in servers:
        subprocess.run([petiole, "server", "stop", "-c", config], check=False)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    main(sys.stdin, sys.argv[1])
