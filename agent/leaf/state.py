"""What an agent must remember on its own, since its stream may be lost or restored from a backup. Only the
records; `state_file` keeps them on disk.

A store that is restored from a backup ends at the newest checkpoint that it still holds: there both sides
last held the same. So those before the newest are kept, too, the older the sparser. They are counted, not
timed: a clock that is set would thin them out wrongly. At ten seconds from one announcement to the next they
are those of the last two minutes, one a minute of the last hour and one an hour of the last week in which
data flowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from agent.contract import (
    DOUBTS,
    LOST_STREAMS,
    Checkpoint,
    CommandKey,
    Correction,
    Doubt,
    LostStream,
    Previous,
    Readings,
)
from agent.leaf.commands.cursor import RecentCommands
from agent.leaf.timeline import Timeline

VERSION = 1
SPACING_SECONDS: Final = 9.0
"""The least seconds from one recorded checkpoint to the next: an agent may announce itself more often."""
RETENTION: Final = ((1, 12), (6, 60), (360, 168))
"""Of every n-th checkpoint, so many are retained: (n, number)."""


class Acked(Struct, frozen=True):
    """The last PubAck of a class."""

    run: str
    n: int
    """The number of the batch in its run."""
    seq: int
    """Its sequence in the stream."""
    created: str
    """When this stream was created, as its server wrote it first (`agent.leaf.link.identity`)."""
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
    reading: int = 0
    """The sequence of its last batch of readings or dead letters; 0 where none is known."""

    @property
    def last(self) -> int:
        """The last sequence that the stream is known to have held."""
        return max(self.seq, self.top)

    def previous(self) -> Previous:
        """The same, as a ledger record of the next run states it."""
        return Previous(self.run, self.n, self.readings, self.closed)


class Checkpoints(Struct, frozen=True):
    """Checkpoints in one stream of the hub whose message ids begin alike, as those of one run do: the number
    of each, its leaf sequence, the end of its id and its hub sequence."""

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


class MadeAgain(Struct, frozen=True):
    """A stream that its server created anew at `made`, over the messages of the one of `created`."""

    made: str
    created: str


class Loss(Struct, frozen=True):
    """So many readings were lost, the last of them at `at` in epoch seconds."""

    readings: int
    at: float


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
    stale: list[str] = []
    """The inputs whose position is older than what they have stored: the state is that of an older copy."""
    doubts: dict[str, list[Doubt]] = {}
    """By class, the newest doubts about lines of inputs."""
    written: str = ""
    """A random name of the file as it was written, by which what is written later says that it follows."""
    earlier: dict[str, list[Checkpoints]] = {}
    """By class, the checkpoints before the newest."""
    spread: float = 0.0
    """What the hub last said of its time for the links of all leaves (`Answer.spread_seconds`)."""
    made_again: dict[str, MadeAgain] = {}
    """By class."""
    losses: dict[str, Loss] = {}
    """By class, the newest."""
    unconfirmed: dict[str, int] = {}
    """By class that is not configured any more, the newest reading that was seen in its stream and that the
    hub was not known to hold."""

    def newest_reading(self, cls: str) -> int:
        """The sequence of the newest reading that the stream of a class is known to have held, by the agent's
        own batches and, after the class was removed, by what was seen there; 0 where none is known."""
        acked = self.acked.get(cls)
        return max(self.unconfirmed.get(cls, 0), 0 if acked is None else acked.reading)

    def removed_classes(self, configured: Iterable[str]) -> list[str]:
        """The classes that had a stream here and are not configured any more."""
        return sorted({*self.epochs, *self.positions}.difference(configured))

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

    def doubt(self, cls: str, doubt: Doubt) -> None:
        """Name lines that may be stored twice or may be lacking; an earlier doubt of the same place goes."""
        others = [one for one in self.doubts.get(cls, ()) if one.place != doubt.place]
        self.doubts[cls] = [*others, doubt][-DOUBTS:]

    def learn(self, cls: str, recorded: Sequence[LostStream]) -> None:
        """Take in what a ledger record says of lost streams."""
        known = self.lost.get(cls, [])
        self.lost[cls] = [*(store for store in known if store not in recorded), *recorded][-LOST_STREAMS:]


class CheckpointLog:
    """Records in the state what both sides agree on."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._recorded_at: dict[str, float] = {}

    def agree(self, cls: str, checkpoint: Checkpoint, now: float) -> None:
        """Both sides hold the same here, at a monotonic time."""
        self._state.checkpoint[cls] = checkpoint
        if now >= self._recorded_at.get(cls, now - SPACING_SECONDS) + SPACING_SECONDS:
            self._recorded_at[cls] = now
            self._state.earlier[cls] = with_checkpoint(self._state.earlier.get(cls, []), checkpoint)


def with_checkpoint(groups: list[Checkpoints], checkpoint: Checkpoint) -> list[Checkpoints]:
    """Add a checkpoint and drop those that are not retained any longer."""
    rows = list(_rows(groups))
    if rows and rows[-1][1] == checkpoint:
        return groups
    newest = rows[-1][0] + 1 if rows else 1
    rows.append((newest, checkpoint))
    return _grouped((number, row) for number, row in rows if _is_retained(number, newest))


def earlier_checkpoints(groups: list[Checkpoints]) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return [checkpoint for _, checkpoint in _rows(groups)]


def forget_checkpoints(state: State, cls: str, start: int) -> None:
    """An epoch begins at this sequence: only what comes before it is still agreed on."""
    rows = [(number, row) for number, row in _rows(state.earlier.get(cls, [])) if row.leaf_seq < start]
    state.earlier[cls] = _grouped(rows)
    newest = state.checkpoint.get(cls)
    if newest is not None and newest.leaf_seq >= start:
        del state.checkpoint[cls]
        if rows:
            state.checkpoint[cls] = rows[-1][1]


def _is_retained(number: int, newest: int) -> bool:
    return any(number % step == 0 and newest - number < step * count for step, count in RETENTION)


def _rows(groups: Iterable[Checkpoints]) -> Iterator[tuple[int, Checkpoint]]:
    yield from sorted(
        (number, Checkpoint(leaf_seq, f"{group.ids}{end}", group.stream, hub_seq))
        for group in groups
        for number, leaf_seq, end, hub_seq in group.rows
    )


def _grouped(rows: Iterable[tuple[int, Checkpoint]]) -> list[Checkpoints]:
    groups: dict[tuple[str, str], Checkpoints] = {}
    for number, checkpoint in rows:
        run, dash, end = checkpoint.message_id.rpartition("-")
        group = groups.setdefault(
            (run, checkpoint.hub_stream), Checkpoints(run + dash, checkpoint.hub_stream, [])
        )
        group.rows.append((number, checkpoint.leaf_seq, end, checkpoint.hub_seq))
    return list(groups.values())
