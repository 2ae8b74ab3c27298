"""Which class goes first when a link that was away is back and all have a backlog. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CAUGHT_UP: Final = 64
"""Messages that a class may still have to send: what flows all the time is never quite at the end."""
TURN_SECONDS: Final = 60.0
"""A class that has not caught up by then shares the link with the others: it may never catch up."""


def first_in_turn(cls: str, priorities: Mapping[str, int], behind: Mapping[str, int], linked: float) -> str:
    """The class that `cls` waits for, "" where it may flow. The smallest priority goes first; classes of one
    priority go together. `behind` is how many messages each still has to send, `linked` for how many seconds
    the link has been up."""
    if linked >= TURN_SECONDS:
        return ""
    before = [
        name
        for name, priority in priorities.items()
        if priority < priorities[cls] and behind.get(name, 0) > CAUGHT_UP
    ]
    return min(before, key=lambda name: (priorities[name], name), default="")
