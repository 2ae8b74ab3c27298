"""Exit codes, the same for the agent, its commands and the jobs."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a process says when it ends."""

    WELL = 0
    FAILED = 1
    USAGE = 2
    LOSS = 3
    CONFLICT = 4
    UNREACHABLE = 5
