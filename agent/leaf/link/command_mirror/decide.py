"""Decides about the command mirror. Pure.

A mirror of a recreated or restored origin drops commands up to its last sequence and shows `lag 0`. It is
recreated under a new epoch from the hub's first command; readers continue after their last. A mirror ahead of
a restored origin also takes later commands, so each mirrored command is compared once with the hub's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from agent.contract import COMMANDS_CHECKED, CommandKey, CommandsHeld

MISSED_ANSWERS: Final = 3
"""Consecutive answers about delivered commands that the mirror lacks, before a new epoch."""


class MirrorEpochReason(StrEnum):
    """The reason of a new epoch, as logged."""

    FIRST = "the mirror of the commands is created for the first time"
    GONE = "the mirror of the commands was deleted here"
    ELSEWHERE = "the hub now has this leaf in another account"
    FOREIGN = "the mirror of the commands is of another epoch than the state file's"
    RECREATED = "the hub's stream of commands was deleted and created again"
    RESTORED = "the hub's stream of commands was restored from a backup"
    MISSED = "the hub has delivered commands that the mirror does not hold"


class MirrorInfo(Struct, frozen=True):
    """The mirror by the local server."""

    last: int
    """Last command's sequence, 0 for none."""
    deliver: str
    """Its consumer's deliver subject, "" if no mirror."""
    origin: str
    """Origin's creation time."""
    elsewhere: bool = False
    """Whether it looks for its origin in another account."""
    newest: CommandKey | None = None
    """Newest present command."""
    created: str = ""
    """Own creation time."""


class MirrorObservation(Struct, frozen=True):
    """All observations."""

    deliver: str | None
    """Present epoch's subject, or None."""
    fresh: bool
    """Whether this epoch has no mirror yet."""
    mirror: MirrorInfo | None
    held: CommandsHeld | None
    """The hub's answer."""
    asked_last: int
    """Newest command when asked."""
    missed: int = 0
    """Consecutive answers with delivered but missing commands."""
    asked: bool = True
    """Whether this connection and epoch had an answer or silence."""
    mirrored: bool = True
    """Whether a mirror existed before."""
    top: int | None = None
    """Sequence to reach before programs resume; None if none waits."""


class NewMirrorEpoch(Struct, frozen=True):
    """Choose and announce a new epoch."""

    reason: MirrorEpochReason


class Make(Struct, frozen=True):
    """Create or replace the mirror."""

    origin: str
    """Origin's creation time."""


class Release(Struct, frozen=True):
    """Resume local programs."""


class MirrorDecision(Struct, frozen=True):
    """The mirror's state and action."""

    sentence: str
    up: bool
    """Whether commands arrive."""
    lag: int | None = None
    """Most missing commands, None if unknown."""
    action: NewMirrorEpoch | Make | Release | None = None
    usual: bool = False
    """Whether expected, as at a start."""


def decide(observation: MirrorObservation) -> MirrorDecision:
    """Return the state and the next action."""
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
    """Mirrored commands not yet compared; `agreed` is the newest common one."""

    def __init__(self, agreed: CommandKey | None) -> None:
        self.agreed = agreed
        self._since: list[CommandKey] = []
        self._newest = agreed

    def read_from(self, newest: CommandKey | None) -> int | None:
        """Return where to read on up to `newest`, None if enough is known."""
        self._newest = newest
        last_read = self._since[-1] if self._since else self.agreed
        top = 0 if last_read is None else last_read[0]
        if newest is None or newest[0] <= top or len(self._since) >= COMMANDS_CHECKED:
            return None
        return top + 1

    def add(self, command: CommandKey) -> None:
        self._since.append(command)

    def to_ask(self) -> tuple[CommandKey, ...]:
        """Return commands to ask about, oldest first, always with the newest."""
        oldest, newest = self._oldest(), self._newest
        behind = newest is not None and newest[0] > max(oldest, default=(0, 0))[0]
        return (*oldest, newest) if newest is not None and behind else oldest

    def answered(self, asked: tuple[CommandKey, ...], same: bool | None) -> None:
        """Apply an answer; commands dropped by the hub count as equal."""
        compared = [command for command in self._oldest() if command in asked]
        if same is not False and compared:
            self.agreed = compared[-1]
            self._since = [command for command in self._since if command[0] > self.agreed[0]]

    def _oldest(self) -> tuple[CommandKey, ...]:
        agreed = () if self.agreed is None else (self.agreed,)
        return (*agreed, *self._since)[: COMMANDS_CHECKED - 1]
