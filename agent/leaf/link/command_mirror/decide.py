"""What is done about the leaf's mirror of its commands. Pure: no clock, no connection.

A mirror can't be changed. One whose origin was deleted and created again, or restored from a backup,
drops every command up to its own last sequence and reports `lag 0`; a source begins again. So it is
deleted and recreated under a new epoch, from the first command that the hub holds; who reads it goes on after
the last command it has run: the agent by itself, local programs by their consumers, which are recreated too.

A mirror that was ahead of a restored origin also takes what comes after its own last sequence, so its newest
command is soon the origin's newest again. So each command that was mirrored is compared once, with the newest
one that was found to be the same, by sequence and by when the hub stored it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from agent.contract import COMMANDS_CHECKED, CommandKey, CommandsHeld

MISSED_ANSWERS: Final = 3
"""How many answers in a row must say that the hub has delivered what the mirror lacks."""


class MirrorEpochReason(StrEnum):
    """Why the mirror needs a new epoch; the value is what the log says."""

    FIRST = "the mirror of the commands is created for the first time"
    GONE = "the mirror of the commands was deleted here"
    ELSEWHERE = "the hub now has this leaf in another account"
    FOREIGN = "the mirror of the commands is of another epoch than the state file's"
    RECREATED = "the hub's stream of commands was deleted and created again"
    RESTORED = "the hub's stream of commands was restored from a backup"
    MISSED = "the hub has delivered commands that the mirror does not hold"


class MirrorInfo(Struct, frozen=True):
    """The mirror as the local server shows it."""

    last: int
    """The last sequence of a command that came into it, 0 without one."""
    deliver: str
    """The deliver subject of its consumer, "" for a stream that is not a mirror."""
    origin: str
    """When its origin was created."""
    elsewhere: bool = False
    """Whether it looks for its origin in another account."""
    newest: CommandKey | None = None
    """The newest command that it holds now."""
    created: str = ""
    """When it was created itself."""


class MirrorObservation(Struct, frozen=True):
    """All that is known of the mirror."""

    deliver: str | None
    """The subject of the present epoch, None without one."""
    fresh: bool
    """Whether no mirror was created under this epoch yet."""
    mirror: MirrorInfo | None
    held: CommandsHeld | None
    """What the hub answered to the epoch."""
    asked_last: int
    """The mirror's newest command when the hub was asked."""
    missed: int = 0
    """In how many answers in a row the hub had delivered what the mirror lacked."""
    asked: bool = True
    """Whether the hub was asked over this connection and under this epoch, and has answered or was silent."""
    mirrored: bool = True
    """Whether there was a mirror here before."""
    top: int | None = None
    """The sequence that the mirror must reach, if the hub holds it, before local programs resume; None if
    none waits."""


class NewMirrorEpoch(Struct, frozen=True):
    """Choose a new epoch and announce it."""

    reason: MirrorEpochReason


class Make(Struct, frozen=True):
    """Create the mirror over the hub's consumer, in the place of one that exists."""

    origin: str
    """When that of the mirror was created."""


class Release(Struct, frozen=True):
    """Resume the local programs, each at its position."""


class MirrorDecision(Struct, frozen=True):
    """The state of the mirror, and what to do."""

    sentence: str
    up: bool
    """Whether commands come in."""
    lag: int | None = None
    """How many are missing at most, None if unknown."""
    action: NewMirrorEpoch | Make | Release | None = None
    usual: bool = False
    """Whether this is expected, as on a start."""


def decide(observation: MirrorObservation) -> MirrorDecision:
    """The state of the mirror, and the one thing to do about it."""
    mirror, held = observation.mirror, observation.held
    if mirror is not None and not mirror.deliver:
        return MirrorDecision(
            "the stream COMMANDS on this leaf was not created by the agent, so commands cannot come in; "
            "delete it, then the mirror is created",
            up=False,
        )
    reason = _reason(observation)
    if reason is MirrorEpochReason.FIRST:
        return MirrorDecision(reason.value, up=False, action=NewMirrorEpoch(reason), usual=True)
    if reason is not None:
        return MirrorDecision(f"{reason.value}; it is recreated", up=False, action=NewMirrorEpoch(reason))
    if held is None:
        return _unheard(observation)
    if mirror is None or mirror.deliver != observation.deliver:
        sentence, make = "the mirror of the commands is being created", Make(held.stream_created)
        return MirrorDecision(sentence, up=False, action=make, usual=not observation.mirrored)
    release = observation.top is not None and mirror.last >= min(observation.top, held.last)
    action = Release() if release else None
    if held.behind and mirror.last < held.last:
        sentence = f"lagging: at most {held.behind} commands are still at the hub"
        return MirrorDecision(sentence, True, held.behind, action)
    return MirrorDecision("flowing: all commands that the hub holds are here", True, 0, action)


def _unheard(observation: MirrorObservation) -> MirrorDecision:
    silence = "the hub was not asked about the commands yet"
    if observation.asked:
        silence = (
            "the hub does not answer for the commands (the link is down or its registrar is unreachable)"
        )
    if observation.mirror is None:
        usual = not observation.mirrored or not observation.asked
        return MirrorDecision(f"there is no mirror yet: {silence}", up=False, usual=usual)
    state = "down" if observation.asked else "comparing"
    waits = "those that are here can be read"
    if observation.top is not None:
        waits = "local programs wait until it has answered"
    return MirrorDecision(f"{state}: {silence}; {waits}", up=False, usual=not observation.asked)


def _reason(observation: MirrorObservation) -> MirrorEpochReason | None:
    mirror, held = observation.mirror, observation.held
    if observation.deliver is None:
        return MirrorEpochReason.FIRST if mirror is None else MirrorEpochReason.FOREIGN
    if observation.fresh:
        return None
    if mirror is None:
        return MirrorEpochReason.GONE if observation.mirrored else MirrorEpochReason.FIRST
    if mirror.elsewhere:
        return MirrorEpochReason.ELSEWHERE
    if mirror.deliver != observation.deliver:
        return MirrorEpochReason.FOREIGN
    if held is None:
        return None
    if mirror.origin != held.stream_created:
        return MirrorEpochReason.RECREATED
    if held.agreed is False or held.stream_last < observation.asked_last:
        return MirrorEpochReason.RESTORED
    return MirrorEpochReason.MISSED if observation.missed >= MISSED_ANSWERS else None


class CommandComparison:
    """The commands of the mirror that were not compared with the hub yet. `agreed` is the newest one up to
    which it was found to hold the same, None in a new mirror."""

    def __init__(self, agreed: CommandKey | None) -> None:
        self.agreed = agreed
        self._since: list[CommandKey] = []
        self._newest = agreed

    def read_from(self, newest: CommandKey | None) -> int | None:
        """The sequence from which to read the mirror, which ends with `newest`, further; None if enough of it
        is known."""
        self._newest = newest
        last_read = self._since[-1] if self._since else self.agreed
        top = 0 if last_read is None else last_read[0]
        if newest is None or newest[0] <= top or len(self._since) >= COMMANDS_CHECKED:
            return None
        return top + 1

    def add(self, command: CommandKey) -> None:
        """Add the next command of the mirror."""
        self._since.append(command)

    def to_ask(self) -> tuple[CommandKey, ...]:
        """The commands to ask the hub about, the oldest first, always with the newest one: a hub that is
        behind the mirror is found at once."""
        oldest, newest = self._oldest(), self._newest
        behind = newest is not None and newest[0] > max(oldest, default=(0, 0))[0]
        return (*oldest, newest) if newest is not None and behind else oldest

    def answered(self, asked: tuple[CommandKey, ...], same: bool | None) -> None:
        """Take over the hub's answer. What it can't compare, since it has dropped those commands, counts as
        the same."""
        compared = [command for command in self._oldest() if command in asked]
        if same is not False and compared:
            self.agreed = compared[-1]
            self._since = [command for command in self._since if command[0] > self.agreed[0]]

    def _oldest(self) -> tuple[CommandKey, ...]:
        agreed = () if self.agreed is None else (self.agreed,)
        return (*agreed, *self._since)[: COMMANDS_CHECKED - 1]
