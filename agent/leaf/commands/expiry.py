"""Whether a command is still wanted, judged by a clock that may be wrong. Pure; times are epoch seconds.

The clock of a device may start in 1970, or where it was when the power went. The hub stamps every command, so
a clock that is behind the stamp of a command is known to be wrong, however plausible it looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

TOLERANCE: Final = 60.0
"""By how much two clocks that are both right may differ here."""


@dataclass(frozen=True, slots=True)
class Now:
    """What the machine's clock says, and whether the kernel calls it synchronised."""

    wall: float
    synchronised: bool


class ExpiryVerdict(Enum):
    """What to do with a command."""

    RUN = "run"
    EXPIRED = "expired"
    UNSURE = "unsure"
    """It has not expired by this clock, but this clock is wrong."""


def judge(expires: float | None, stored: float, now: Now) -> ExpiryVerdict:
    """`expires` as the command says, None for never; `stored` when the hub stored it."""
    if expires is None:
        return ExpiryVerdict.RUN
    if expires <= max(now.wall, stored):
        return ExpiryVerdict.EXPIRED
    if now.synchronised or now.wall >= stored - TOLERANCE:
        return ExpiryVerdict.RUN
    return ExpiryVerdict.UNSURE
