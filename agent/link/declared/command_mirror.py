"""What is done about the leaf's mirror of its commands. Pure: no clock, no connection.

A mirror can't be changed. One whose origin was deleted and made again, or put back from an older copy, drops
every command up to its own last sequence and reports `lag 0` (seen on nats-server 2.15.1). So it is deleted
and made anew under a new epoch, from the first command that the hub holds; who reads it goes on after the
last command it has run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.contract import CommandsHeld

MISSED_ANSWERS: Final = 3
"""How many answers in a row must say that the hub has delivered what the mirror lacks."""


class Why(StrEnum):
    """Why the mirror needs a new epoch; the value is what the log says."""

    FIRST = "the mirror of the commands is made for the first time"
    GONE = "the mirror of the commands was deleted here"
    ELSEWHERE = "the hub now has this leaf in another account"
    FOREIGN = "the mirror of the commands is of another epoch than the state file's"
    RECREATED = "the hub's stream of commands was deleted and made again"
    PUT_BACK = "the hub's stream of commands was put back from an older copy"
    MISSED = "the hub has delivered commands that the mirror does not hold"


@dataclass(frozen=True, slots=True)
class Mirror:
    """The mirror as the local server shows it: its last sequence, the deliver subject of its consumer ("" for
    a stream that is no mirror), when its origin was made, and whether it looks for it `elsewhere`."""

    last: int
    deliver: str
    origin: str
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """`deliver` is the subject of the present epoch (None without one); `fresh` that no mirror was made under
    it yet; `held` what the hub answered to the epoch, and `asked_last` the mirror's last sequence when it was
    asked; `missed` in how many answers in a row the hub had delivered what the mirror lacked."""

    deliver: str | None
    fresh: bool
    mirror: Mirror | None
    held: CommandsHeld | None
    asked_last: int
    missed: int = 0


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """Choose a new epoch and announce it."""

    why: Why


@dataclass(frozen=True, slots=True)
class Make:
    """Make the mirror over the hub's consumer; `replacing` one that is deleted first."""

    origin: str
    replacing: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The state in one sentence, whether commands come in, how many are missing at most (None: not known),
    and what to do."""

    sentence: str
    up: bool
    lag: int | None = None
    action: NewEpoch | Make | None = None


def decide(seen: Seen) -> Decision:
    """The state of the mirror, and the one thing to do about it."""
    mirror, held = seen.mirror, seen.held
    if mirror is not None and not mirror.deliver:
        return Decision(
            "the stream COMMANDS on this leaf was not made by the agent, so commands cannot come in; delete "
            "it, then the mirror is made",
            up=False,
        )
    why = _why(seen)
    if why is not None:
        return Decision(f"{why.value}; it is made anew", up=False, action=NewEpoch(why))
    if held is None:
        return Decision(_UNHEARD if mirror is None else _UNHEARD_WITH_MIRROR, up=False)
    if mirror is None or mirror.deliver != seen.deliver:
        make = Make(held.stream_created, replacing=mirror is not None)
        return Decision("the mirror of the commands is being made", up=False, action=make)
    if held.behind and mirror.last < held.last:
        return Decision(f"lagging: at most {held.behind} commands are still at the hub", True, held.behind)
    return Decision("flowing: all commands that the hub holds are here", True, 0)


_UNHEARD: Final = (
    "there is no mirror of the commands yet, and the hub does not answer for them: the link is down or its "
    "registrar is away"
)
_UNHEARD_WITH_MIRROR: Final = (
    "down: the hub does not answer for the commands (the link is down or its registrar is away); those that "
    "are here can be read"
)


def _why(seen: Seen) -> Why | None:
    mirror, held = seen.mirror, seen.held
    if seen.deliver is None:
        return Why.FIRST
    if seen.fresh:
        return None
    if mirror is None:
        return Why.GONE
    if mirror.elsewhere:
        return Why.ELSEWHERE
    if mirror.deliver != seen.deliver:
        return Why.FOREIGN
    if held is None:
        return None
    if mirror.origin != held.stream_created:
        return Why.RECREATED
    if held.stream_last < seen.asked_last:
        return Why.PUT_BACK
    return Why.MISSED if seen.missed >= MISSED_ANSWERS else None
