"""Ends what the demonstration started when it dies without being able to, even by SIGKILL.

Reads its standard input: each line is a process group to end or a configuration whose embedded server is to
stop. When the input ends without a last line `done`, it ends them all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TextIO

GROUP, SERVER, DONE = "group", "server", "done"


def main(told: TextIO, petiole: str) -> None:
    """Listen until the input ends, then clean up unless told that it is done."""
    groups: list[int] = []
    servers: list[str] = []
    for line in told:
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
