"""What is done about the leaf's mirror of its commands. Pure: no clock, no connection.

A mirror can't be changed. One whose origin was deleted and created again, or restored from an older copy,
drops every command up to its own last sequence and reports `lag 0` (seen on nats-server 2.15.1). So it is
deleted and recreated under a new epoch, from the first command that the hub holds; who reads it goes on after
the last command it has run: the agent by itself, local programs by their consumers, which are recreated too.

A mirror that was ahead of a restored origin also takes what comes after its own last sequence, so its newest
command is soon the origin's newest again. So each command that was mirrored is compared once, with the newest
one that was found to be the same, by sequence and by when the hub stored it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.contract import COMMANDS_CHECKED, CommandKey, CommandsHeld

MISSED_ANSWERS: Final = 3
"""How many answers in a row must say that the hub has delivered what the mirror lacks."""


class MirrorEpochReason(StrEnum):
    """Why the mirror needs a new epoch; the value is what the log says."""

    FIRST = "the mirror of the commands is made for the first time"
    GONE = "the mirror of the commands was deleted here"
    ELSEWHERE = "the hub now has this leaf in another account"
    FOREIGN = "the mirror of the commands is of another epoch than the state file's"
    RECREATED = "the hub's stream of commands was deleted and created again"
    RESTORED = "the hub's stream of commands was restored from an older copy"
    MISSED = "the hub has delivered commands that the mirror does not hold"


@dataclass(frozen=True, slots=True)
class MirrorInfo:
    """The mirror as the local server shows it: the last sequence of a command that came into it (0 without
    one), the deliver subject of its consumer ("" for a stream that is no mirror), when its origin was
    created, and whether it looks for it `elsewhere`; `newest` is the newest command that it holds now,
    `created` is when it was created itself."""

    last: int
    deliver: str
    origin: str
    elsewhere: bool = False
    newest: CommandKey | None = None
    created: str = ""


@dataclass(frozen=True, slots=True)
class MirrorObservation:
    """`deliver` is the subject of the present epoch (None without one); `fresh` that no mirror was made under
    it yet; `held` what the hub answered to the epoch, and `asked_last` the mirror's newest command when it
    was asked; `missed` in how many answers in a row the hub had delivered what the mirror lacked. `mirrored`
    says that there was a mirror here before, `top` which sequence the mirror must have reached, if the hub
    holds it, before local programs can be given their places (None where none waits)."""

    deliver: str | None
    fresh: bool
    mirror: MirrorInfo | None
    held: CommandsHeld | None
    asked_last: int
    missed: int = 0
    mirrored: bool = True
    top: int | None = None


@dataclass(frozen=True, slots=True)
class NewMirrorEpoch:
    """Choose a new epoch and announce it."""

    why: MirrorEpochReason


@dataclass(frozen=True, slots=True)
class Make:
    """Make the mirror over the hub's consumer; `replacing` one that is deleted first."""

    origin: str
    replacing: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Let the local programs go on, each from its place."""


@dataclass(frozen=True, slots=True)
class MirrorDecision:
    """The state in one sentence, whether commands come in, how many are missing at most (None: not known),
    what to do, and whether all this is `usual`, as on a first start."""

    sentence: str
    up: bool
    lag: int | None = None
    action: NewMirrorEpoch | Make | Release | None = None
    usual: bool = False


def decide(seen: MirrorObservation) -> MirrorDecision:
    """The state of the mirror, and the one thing to do about it."""
    mirror, held = seen.mirror, seen.held
    if mirror is not None and not mirror.deliver:
        return MirrorDecision(
            "the stream COMMANDS on this leaf was not made by the agent, so commands cannot come in; delete "
            "it, then the mirror is made",
            up=False,
        )
    why = _why(seen)
    if why is MirrorEpochReason.FIRST:
        return MirrorDecision(why.value, up=False, action=NewMirrorEpoch(why), usual=True)
    if why is not None:
        return MirrorDecision(f"{why.value}; it is recreated", up=False, action=NewMirrorEpoch(why))
    if held is None:
        return _unheard(seen)
    if mirror is None or mirror.deliver != seen.deliver:
        make = Make(held.stream_created, replacing=mirror is not None)
        sentence = "the mirror of the commands is being made"
        return MirrorDecision(sentence, up=False, action=make, usual=not seen.mirrored)
    release = seen.top is not None and mirror.last >= min(seen.top, held.last)
    action = Release() if release else None
    if held.behind and mirror.last < held.last:
        sentence = f"lagging: at most {held.behind} commands are still at the hub"
        return MirrorDecision(sentence, True, held.behind, action)
    return MirrorDecision("flowing: all commands that the hub holds are here", True, 0, action)


def _unheard(seen: MirrorObservation) -> MirrorDecision:
    silence = "the hub does not answer for the commands (the link is down or its registrar is unreachable)"
    if seen.mirror is None:
        return MirrorDecision(f"there is no mirror yet: {silence}", up=False, usual=not seen.mirrored)
    if seen.top is not None:
        return MirrorDecision(f"down: {silence}; local programs wait until it has answered", up=False)
    return MirrorDecision(f"down: {silence}; those that are here can be read", up=False)


def _why(seen: MirrorObservation) -> MirrorEpochReason | None:
    mirror, held = seen.mirror, seen.held
    if seen.deliver is None:
        return MirrorEpochReason.FIRST if mirror is None else MirrorEpochReason.FOREIGN
    if seen.fresh:
        return None
    if mirror is None:
        return MirrorEpochReason.GONE if seen.mirrored else MirrorEpochReason.FIRST
    if mirror.elsewhere:
        return MirrorEpochReason.ELSEWHERE
    if mirror.deliver != seen.deliver:
        return MirrorEpochReason.FOREIGN
    if held is None:
        return None
    if mirror.origin != held.stream_created:
        return MirrorEpochReason.RECREATED
    if held.agreed is False or held.stream_last < seen.asked_last:
        return MirrorEpochReason.RESTORED
    return MirrorEpochReason.MISSED if seen.missed >= MISSED_ANSWERS else None


class CommandComparison:
    """The commands of the mirror that the hub was not asked about yet. `agreed` is the newest one up to which
    it was found to hold the same, None in a mirror that was just made."""

    def __init__(self, agreed: CommandKey | None) -> None:
        self.agreed = agreed
        self._since: list[CommandKey] = []
        self._newest = agreed

    def reads_from(self, newest: CommandKey | None) -> int | None:
        """The sequence from which the mirror, which ends with `newest`, has to be read on; None where enough
        is known of it."""
        self._newest = newest
        known = self._since[-1:] or ([] if self.agreed is None else [self.agreed])
        top = known[0][0] if known else 0
        if newest is None or newest[0] <= top or len(self._since) >= COMMANDS_CHECKED:
            return None
        return top + 1

    def add(self, command: CommandKey) -> None:
        """The mirror holds this command after those that are known."""
        self._since.append(command)

    def question(self) -> tuple[CommandKey, ...]:
        """The commands to ask the hub about, the oldest first. The newest one is always among them: a hub
        that is behind the mirror is found at once."""
        asked = self._in_turn()
        newest = self._newest
        return (*asked, newest) if newest is not None and newest[0] > max(asked, default=(0, 0))[0] else asked

    def answered(self, asked: tuple[CommandKey, ...], same: bool | None) -> None:
        """The hub's answer to a question. What it can't compare, since it has dropped those commands, counts
        as the same."""
        known = [one for one in self._in_turn() if one in asked]
        if same is not False and known:
            self.agreed = known[-1]
            self._since = [one for one in self._since if one[0] > self.agreed[0]]

    def _in_turn(self) -> tuple[CommandKey, ...]:
        known = () if self.agreed is None else (self.agreed,)
        return (*known, *self._since)[: COMMANDS_CHECKED - 1]
