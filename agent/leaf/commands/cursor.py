"""Where in the stream of commands this leaf is: which command comes next and which was run already. Pure.

A mirror keeps the sequences and times of its origin, so as long as the local stream is the same one the
sequence decides. A mirror that was deleted and recreated holds commands that were run already, and its origin
may be another stream by now, which counts from 1 again, or the same one restored from a backup, which
gives sequences a second time. No command is new that is among the recent ones (`RecentCommands`).
Of the others those are new that stand above the last command run in the same origin, that the hub stored
later than all that was run before the recent ones, or that follow a new one or the last command run. Where
the recent ones do not hold the last command run, as after a loss of the state file, all counts as run that
the hub stored before it or any earlier one: it is left out rather than run twice.

Whether a command has expired is judged by a clock that may be wrong: that of a device may start in 1970, or
where it was when the power went. The hub stamps every command, so a clock that is behind the stamp of a
command is wrong, however plausible it looks.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct, structs

from agent.base.clock import Instant
from agent.contract import ContractError

RECENT_COMMANDS: Final = 256
"""Far more than a mirror takes in until it is compared with the hub and recreated."""


class CommandPosition(Struct, frozen=True, forbid_unknown_fields=True):
    """A command that was begun."""

    created: str
    """When the local stream was created, as its server wrote it."""
    origin: str
    """When the stream that it mirrors was created; empty if that is not known."""
    seq: int
    time: int
    """When the hub stored this command or, if that is later, any before it (ns since 1970)."""
    id: str
    """Empty for a command that could not be read."""
    verb: str

    def encode(self) -> str:
        return json.dumps(structs.asdict(self), separators=(",", ":"))


def parse_position(text: str) -> CommandPosition:
    """Read a position back; raises `ContractError`."""
    try:
        return msgspec.json.decode(text, type=CommandPosition)
    except msgspec.MsgspecError as error:
        raise ContractError(f"position of a command: {error} in {text!r:.200}") from None


def unanswered(
    begun: CommandPosition | None, answered: CommandPosition | None, recent: RecentCommands
) -> bool:
    """Whether `begun`, the last command begun, comes after `answered`, the last one whose answer is stored.
    False if it was answered, or if the state file that names it was restored from a backup."""
    if begun is None or answered is None:
        return begun is not None
    if begun.created == answered.created:
        return begun.seq > answered.seq
    first, second = (recent.order(position.seq, position.time, position.id) for position in (answered, begun))
    if first is not None and second is not None:
        return second > first
    return begun.time > answered.time


class CommandCursor:
    """The position in the stream after the command `last` (None if none was ever run). `recent` are the last
    commands run; the caller adds each command that it runs."""

    def __init__(self, last: CommandPosition | None, recent: RecentCommands) -> None:
        self._last, self._recent = last, recent
        if last is not None:
            recent.reach(last.seq, last.time, last.id)
        self._created: str | None = None
        self._origin = ""
        self._past_last = False
        self.next = 1
        """The sequence from which the next command is read."""

    def enter(self, created: str, origin: str) -> None:
        """Read the local stream created at `created`, which mirrors one created at `origin`."""
        if created == self._created:
            return
        same = self._last is not None and self._last.created == created
        self._created, self._origin = created, origin
        self._past_last = (same and self._knows_last()) or self._last is None
        self.next = self._last.seq + 1 if same and self._last is not None else 1

    def skip(self, up_to: int) -> None:
        """No further command for this leaf is at or below this sequence."""
        self.next = max(self.next, up_to + 1)

    def take(self, seq: int, time: int, ident: str, verb: str) -> CommandPosition | None:
        """Advance past the next command, which the hub stored at `time`; returns its position if it is new,
        None if it was run already."""
        last = self._last
        assert self._created is not None
        self.next = seq + 1
        if (seq, time, ident) in self._recent.commands:
            is_last = last is not None and (last.seq, last.id) == (seq, ident)
            self._past_last = self._past_last or is_last
            return None
        if last is not None and not self._past_last:
            same = self._origin != "" and last.origin == self._origin
            above = same and seq > last.seq and self._knows_last()
            if not above and time <= self._recent.before:
                return None
        self._past_last = True
        latest = max(time, 0 if last is None else last.time)
        self._last = CommandPosition(self._created, self._origin, seq, latest, ident, verb)
        return self._last

    def _knows_last(self) -> bool:
        last = self._last
        return last is not None and self._recent.order(last.seq, last.time, last.id) is not None


RunCommand = tuple[int, int, str]
"""The sequence of a command, when the hub stored it (ns since 1970), and its id ("" for one that could not be
read)."""


class RecentCommands(Struct):
    """The last `RECENT_COMMANDS` commands that were begun or answered, so that a command is recognized in
    another history of the hub's stream.

    A mirror may hold commands of two histories: of a stream that was recreated or restored from a backup it
    drops what has sequences that it holds already, and takes what comes after. The mirror that replaces it
    brings the dropped commands, which were stored before others that were run. So neither the last sequence
    nor the last time shows which commands are new; the commands that were run do.
    """

    before: int = 0
    """By when the hub had stored all other commands that were run (ns since 1970)."""
    commands: list[RunCommand] = []
    """In the order in which they were taken."""

    def add(self, command: RunCommand) -> None:
        """Add a command that was begun or answered."""
        if command in self.commands:
            return
        self.commands.append(command)
        while len(self.commands) > RECENT_COMMANDS:
            self.before = max(self.before, self.commands.pop(0)[1])

    def reach(self, seq: int, time: int, ident: str) -> None:
        """This is the last command known to have run; the hub had stored it and all before it by `time`. If
        the list ends before it, commands are missing in it: what was stored by then counts as run."""
        if self.order(seq, time, ident) is None:
            self.before = max(self.before, time)

    def order(self, seq: int, time: int, ident: str) -> int | None:
        """The index in the list of the command with this sequence and id that was stored by `time`."""
        return max(
            (
                index
                for index, (listed_seq, listed_time, listed_id) in enumerate(self.commands)
                if (listed_seq, listed_id) == (seq, ident) and listed_time <= time
            ),
            default=None,
        )


class ExpiryVerdict(Enum):
    """What to do with a command."""

    RUN = "run"
    EXPIRED = "expired"
    UNSURE = "unsure"
    """It has not expired by this clock, but this clock is wrong."""


def judge_expiry(expires: float | None, stored: float, now: Instant) -> ExpiryVerdict:
    """Whether a command that expires at `expires` (None: never) and that the hub stored at `stored` may run;
    both are epoch seconds."""
    wall = now.wall / 1e9
    if expires is None:
        return ExpiryVerdict.RUN
    if expires <= max(wall, stored):
        return ExpiryVerdict.EXPIRED
    if now.clock.synchronised or wall >= stored - TOLERANCE:
        return ExpiryVerdict.RUN
    return ExpiryVerdict.UNSURE


TOLERANCE: Final = 60.0
"""By how much two clocks that are both right may differ here."""
