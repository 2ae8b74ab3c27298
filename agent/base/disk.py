"""How much room a disk has left. A server whose disk becomes full stops writing until it is started anew, so
a little is kept free by refusing in time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_RESERVE: Final = 64 * 2**20
_SHARE: Final = 20


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that this user may still write, and how many should be left: 64 MiB, or a twentieth of a small
    disk."""

    free: int
    reserve: int

    @property
    def low(self) -> bool:
        """Whether so little is left that nothing more may be taken in."""
        return self.free < self.reserve

    @property
    def enough(self) -> bool:
        """Whether it is worth while to begin again; more than not being low, so that it does not flap."""
        return self.free >= 2 * self.reserve


def room(directory: Path) -> Room | None:
    """The room of the disk on which a directory is, None where that can't be told."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    total = found.f_blocks * found.f_frsize
    return Room(found.f_bavail * found.f_frsize, min(_RESERVE, total // _SHARE))
