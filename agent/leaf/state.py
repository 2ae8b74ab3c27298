"""What an agent must remember on its own, since its stream may be lost or restored from a backup. Only the
records; `state_file` keeps them on disk."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from agent.contract import LOST_STREAMS, Checkpoint, CommandKey, Correction, LostStream, Previous, Readings
from agent.leaf.commands.cursor import RecentCommands
from agent.leaf.timeline import Timeline

VERSION = 1


class Acked(Struct, frozen=True):
    """The last PubAck of a class."""

    run: str
    n: int
    """The number of the batch in its run."""
    seq: int
    """Its sequence in the stream."""
    created: str
    """When this stream was created, as its server wrote it."""
    readings: Readings
    """The run's cumulative readings."""
    closed: bool = False
    """Whether a final ledger record was stored."""
    top: int = 0
    """The last sequence that the stream was seen to hold, with what devices publish there themselves."""
    top_time: str = ""
    """When that message was stored, as its server wrote it."""
    at: int = 0
    """Nothing of all this was stored later (ns since 1970); 0 where that is not known."""

    @property
    def last(self) -> int:
        """The last sequence that the stream is known to have held."""
        return max(self.seq, self.top)

    def previous(self) -> Previous:
        """The same, as a ledger record of the next run states it."""
        return Previous(self.run, self.n, self.readings, self.closed)


class Checkpoints(Struct, frozen=True):
    """Checkpoints (`agent.leaf.link.checkpoints`) in one stream of the hub whose message ids begin alike, as
    those of one run do: the number of each, its leaf sequence, the end of its id and its hub sequence."""

    ids: str
    stream: str
    rows: list[tuple[int, int, str, int]]


class PullPosition(Struct, frozen=True):
    """Where a pull input goes on after its last stored batch, which is at `seq`. The stream has it more
    exactly as long as it holds that batch, but may have trimmed it."""

    text: str
    seq: int


Positions = dict[str, dict[str, PullPosition]]
"""By class and input."""


class Setting(Struct, frozen=True):
    """A value that holds instead of the configured one, for a time."""

    value: str | float | bool
    since: float
    """Epoch seconds, as is `until`."""
    until: float
    boot: str
    """The boot in which it was set; in another one only the epoch seconds count."""
    deadline: float
    """The end by `CLOCK_BOOTTIME`, in seconds, whatever becomes of the clock."""


class State(Struct):
    """The whole file."""

    version: int
    machine: str
    domain: str
    epochs: dict[str, str] = {}
    """Of the link, by class."""
    acked: dict[str, Acked] = {}
    """By class."""
    previous: dict[str, Acked] = {}
    """By class, that of the run before."""
    checkpoint: dict[str, Checkpoint] = {}
    """By class, the newest."""
    positions: Positions = {}
    unplaced: list[str] = []
    """The inputs whose position may have been lost with the state file before this one."""
    command: str | None = None
    """The position of the last command begun (`agent.leaf.commands.cursor`)."""
    commands_run: RecentCommands = msgspec.field(default_factory=RecentCommands)
    command_epoch: str | None = None
    """Of the mirror of the commands."""
    command_agreed: CommandKey | None = None
    """The newest command in this mirror that the hub was found to hold."""
    settings: dict[str, Setting] = {}
    """What commands have set for a time, by name."""
    clock: Timeline | None = None
    corrections: list[Correction] = []
    """Those of the clock that the streams do not hold yet."""
    lost: dict[str, list[LostStream]] = {}
    """By class, the streams whose store was lost or restored."""
    written: str = ""
    """A random name of the file as it was written, by which what is written later says that it follows."""
    earlier: dict[str, list[Checkpoints]] = {}
    """By class, the checkpoints before the newest."""

    def place(self, input_name: str, cls: str, position: PullPosition) -> None:
        """An input goes on from here."""
        self.positions.setdefault(cls, {})[input_name] = position
        if input_name in self.unplaced:
            self.unplaced.remove(input_name)

    def lose(self, cls: str, acked: Acked, kept: int | None = None) -> None:
        """The stream of this last PubAck is no more, or holds only what it had `kept` of it: what devices
        published there themselves, and the hub does not have, can be named by its sequences only."""
        known = self.lost.setdefault(cls, [])
        known.append(LostStream(acked.created, acked.last, kept, acked.at))
        del known[:-LOST_STREAMS]

    def learn(self, cls: str, recorded: Sequence[LostStream]) -> None:
        """Take in what a ledger record says of lost streams."""
        known = self.lost.get(cls, [])
        self.lost[cls] = [*(store for store in known if store not in recorded), *recorded][-LOST_STREAMS:]
