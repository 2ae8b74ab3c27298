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
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from msgspec import Struct

from agent.contract import ContractError

KNOWN: Final = 256
"""Far more than a mirror takes in until it is compared with the hub and recreated."""


@dataclass(frozen=True, slots=True)
class CommandPosition:
    """A command that was begun. `created` and `origin` say when the local stream and the one that it mirrors
    were made, as the servers wrote it (`origin` is empty where that is not known), `time` when the hub
    stored this command or, if that is later, any before it (ns since 1970); `id` is empty for a command that
    could not be read."""

    created: str
    origin: str
    seq: int
    time: int
    id: str
    verb: str

    def encode(self) -> str:
        """The place as printable ASCII."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_place(text: str) -> CommandPosition:
    """Read a place back; raises `ContractError`."""
    try:
        row = json.loads(text)
        place = CommandPosition(**row)
    except (ValueError, TypeError) as error:
        raise ContractError(f"place of a command: {error} in {text!r:.200}") from None
    for name, kind in _TYPES.items():
        if type(getattr(place, name)) is not kind:
            raise ContractError(f"place of a command: {name} is not of its type in {text!r:.200}")
    return place


def unanswered(
    begun: CommandPosition | None, answered: CommandPosition | None, recent: RecentCommands
) -> bool:
    """Whether `begun`, the last command begun, comes after `answered`, the last one whose answer is stored.
    It does not where it was answered, nor where what remembers it was restored from a backup."""
    if begun is None or answered is None:
        return begun is not None
    if begun.created == answered.created:
        return begun.seq > answered.seq
    first, second = (recent.order(one.seq, one.time, one.id) for one in (answered, begun))
    if first is not None and second is not None:
        return second > first
    return begun.time > answered.time


class CommandCursor:
    """The way through the stream after the command `last`, None where none was ever run. `recent` are the
    last commands run; the caller adds each command that it runs."""

    def __init__(self, last: CommandPosition | None, recent: RecentCommands) -> None:
        self._last, self._recent = last, recent
        if last is not None:
            recent.reach(last.seq, last.time, last.id)
        self._created: str | None = None
        self._origin = ""
        self._past_last = False
        self.next = 1
        """The sequence from which the next command is sought."""

    def enter(self, created: str, origin: str) -> None:
        """The local stream, as it is now, and the one that it mirrors were created then."""
        if created == self._created:
            return
        same = self._last is not None and self._last.created == created
        self._created, self._origin = created, origin
        self._past_last = (same and self._knows_last()) or self._last is None
        self.next = self._last.seq + 1 if same and self._last is not None else 1

    def skip(self, up_to: int) -> None:
        """No command of ours is at or below this sequence but those that were taken."""
        self.next = max(self.next, up_to + 1)

    def take(self, seq: int, time: int, ident: str, verb: str) -> CommandPosition | None:
        """The command at this sequence is the next one: its place when it is new, None when it was run
        already. `time` is when the hub stored it."""
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
    """The last `KNOWN` commands that were begun or answered, in the order in which they were taken; the hub
    had stored all the others that were run by `before` (ns since 1970)."""

    before: int = 0
    commands: list[RunCommand] = []

    def add(self, command: RunCommand) -> None:
        """This command is begun, or answered without."""
        if command in self.commands:
            return
        self.commands.append(command)
        while len(self.commands) > KNOWN:
            self.before = max(self.before, self.commands.pop(0)[1])

    def reach(self, seq: int, time: int, ident: str) -> None:
        """The last command known to be run is this one; `time` is when the hub had stored it and all before
        it. Where the list ends before it, commands are missing in the list: what was stored by then counts
        as run."""
        if self.order(seq, time, ident) is None:
            self.before = max(self.before, time)

    def order(self, seq: int, time: int, ident: str) -> int | None:
        """Where in the list the command of this sequence and id is that was stored by `time`."""
        return max(
            (
                at
                for at, (known_seq, known_time, known_id) in enumerate(self.commands)
                if (known_seq, known_id) == (seq, ident) and known_time <= time
            ),
            default=None,
        )


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


TOLERANCE: Final = 60.0
"""By how much two clocks that are both right may differ here."""
_TYPES: Final = {"created": str, "origin": str, "seq": int, "time": int, "id": str, "verb": str}
