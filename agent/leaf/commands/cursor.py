"""Decides which command is next and whether it already ran. Pure.

Within one local stream the sequence decides. A recreated mirror repeats commands, and its origin may count
from 1 again or repeat sequences after a restore. Commands in `RecentCommands` already ran. Others are new
when they follow the last command in the same origin, were stored later than all before the recent ones, or
follow a new one. If the recent ones lack the last command, everything stored before it counts as run.

Expiry uses this machine's clock, which is wrong if it is behind the hub's time stamp of a command.
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
"""More commands than a mirror receives before it is compared with the hub."""


class CommandPosition(Struct, frozen=True, forbid_unknown_fields=True):
    """A command that was begun."""

    created: str
    """Creation time of the local stream, as its server wrote it."""
    origin: str
    """Creation time of the mirrored stream, "" if unknown."""
    seq: int
    time: int
    """Latest hub storage time up to this command (ns since 1970)."""
    id: str
    """Empty for an unreadable command."""
    verb: str

    def encode(self) -> str:
        return json.dumps(structs.asdict(self), separators=(",", ":"))


def parse_position(text: str) -> CommandPosition:
    """Parse a position; raises `ContractError`."""
    try:
        return msgspec.json.decode(text, type=CommandPosition)
    except msgspec.MsgspecError as error:
        raise ContractError(f"position of a command: {error} in {text!r:.200}") from None


def unanswered(
    begun: CommandPosition | None, answered: CommandPosition | None, recent: RecentCommands
) -> bool:
    """Tell whether the last begun command lacks its answer; False for a restored state file."""
    if begun is None or answered is None:
        return begun is not None
    if begun.created == answered.created:
        return begun.seq > answered.seq
    first, second = (recent.order(position.seq, position.time, position.id) for position in (answered, begun))
    if first is not None and second is not None:
        return second > first
    return begun.time > answered.time


class CommandCursor:
    """The position after the command `last` (None for none). The caller adds run commands to `recent`."""

    def __init__(self, last: CommandPosition | None, recent: RecentCommands) -> None:
        self._last, self._recent = last, recent
        if last is not None:
            recent.reach(last.seq, last.time, last.id)
        self._created: str | None = None
        self._origin = ""
        self._past_last = False
        self.next = 1
        """Sequence of the next read."""

    def enter(self, created: str, origin: str) -> None:
        """Start reading a local stream with its origin, both by creation time."""
        if created == self._created:
            return
        same = self._last is not None and self._last.created == created
        self._created, self._origin = created, origin
        self._past_last = (same and self._knows_last()) or self._last is None
        self.next = self._last.seq + 1 if same and self._last is not None else 1

    def skip(self, up_to: int) -> None:
        """Skip sequences up to this one."""
        self.next = max(self.next, up_to + 1)

    def take(self, seq: int, time: int, ident: str, verb: str) -> CommandPosition | None:
        """Advance past a command; returns its position if new, None if it already ran."""
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
"""Sequence, hub storage time (ns since 1970) and id ("" if unreadable) of a command."""


class RecentCommands(Struct):
    """The last `RECENT_COMMANDS` begun or answered commands, to recognise them in another stream history.

    A mirror of a recreated or restored stream drops commands with known sequences; its replacement delivers
    them later. So neither last sequence nor last time tells new commands.
    """

    before: int = 0
    """Latest storage time of all earlier commands (ns since 1970)."""
    commands: list[RunCommand] = []
    """In order of execution."""

    def add(self, command: RunCommand) -> None:
        if command in self.commands:
            return
        self.commands.append(command)
        while len(self.commands) > RECENT_COMMANDS:
            self.before = max(self.before, self.commands.pop(0)[1])

    def reach(self, seq: int, time: int, ident: str) -> None:
        """Set the last command known as run. If it is not in the list, everything stored by then counts as
        run.
        """
        if self.order(seq, time, ident) is None:
            self.before = max(self.before, time)

    def order(self, seq: int, time: int, ident: str) -> int | None:
        """Return the index of a command with this sequence and id, stored by `time`."""
        return max(
            (
                index
                for index, (listed_seq, listed_time, listed_id) in enumerate(self.commands)
                if (listed_seq, listed_id) == (seq, ident) and listed_time <= time
            ),
            default=None,
        )


class ExpiryVerdict(Enum):
    RUN = "run"
    EXPIRED = "expired"
    UNSURE = "unsure"
    """Not expired, but this clock is wrong."""


def judge_expiry(expires: float | None, stored: float, now: Instant) -> ExpiryVerdict:
    """Judge whether a command with `expires` (None: never), stored at `stored`, may run; epoch seconds."""
    wall = now.wall / 1e9
    if expires is None:
        return ExpiryVerdict.RUN
    if expires <= max(wall, stored):
        return ExpiryVerdict.EXPIRED
    if now.clock.synchronised or wall >= stored - TOLERANCE:
        return ExpiryVerdict.RUN
    return ExpiryVerdict.UNSURE


TOLERANCE: Final = 60.0
"""Allowed difference of two correct clocks."""
