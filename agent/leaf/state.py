"""Defines the agent's own records, needed after its stream is lost or restored; `state_file` stores them.

A restored store ends at its newest agreed checkpoint, so older checkpoints are kept ever sparser. Counting
instead of timing resists clock changes: about two minutes in full, an hour by the minute, a week by the hour.
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
    RecordId,
)
from agent.leaf.commands.cursor import RecentCommands
from agent.leaf.timeline import Timeline

VERSION = 1
SPACING_SECONDS: Final = 9.0
"""Least seconds between recorded checkpoints."""
RETENTION: Final = ((1, 12), (6, 60), (360, 168))
"""Of every n-th checkpoint, the number kept: (n, number)."""


class Acked(Struct, frozen=True):
    """The last PubAck of a class."""

    run: str
    n: int
    """Batch number in its run."""
    seq: int
    """Its sequence."""
    created: str
    """The stream's creation time as first written by its server (`agent.leaf.link.identity`)."""
    readings: Readings
    """Cumulative readings of the run."""
    closed: bool = False
    """Whether a final ledger record was stored."""
    top: int = 0
    """The stream's last seen sequence, including devices' messages."""
    top_time: str = ""
    """Its storage time as the server wrote it."""
    at: int = 0
    """Latest possible time of all this (ns since 1970); 0 if unknown."""
    reading: int = 0
    """Sequence of its last readings or dead letters; 0 if unknown."""

    @property
    def last(self) -> int:
        """Last sequence that the stream held."""
        return max(self.seq, self.top)

    def previous(self) -> Previous:
        """The same for the next run's ledger record."""
        return Previous(self.run, self.n, self.readings, self.closed)


class Checkpoints(Struct, frozen=True):
    """Checkpoints of one hub stream with a common message id prefix: numbers, leaf sequences, id ends, hub
    sequences.
    """

    ids: str
    stream: str
    rows: list[tuple[int, int, str, int]]


class PullPosition(Struct, frozen=True):
    """A pull input's position after its last batch at `seq`; the stream is more exact while it holds that
    batch.
    """

    text: str
    seq: int


Positions = dict[str, dict[str, PullPosition]]
"""By class and input."""


class MadeAgain(Struct, frozen=True):
    """A stream recreated at `made` over messages of the one of `created`."""

    made: str
    created: str


class Loss(Struct, frozen=True):
    """Lost readings, the last at `at` in epoch seconds."""

    readings: int
    at: float


class Setting(Struct, frozen=True):
    """A temporary value."""

    value: str | float | bool
    since: float
    """Epoch seconds, as `until`."""
    until: float
    boot: str
    """The boot of its start; in others only epoch seconds count."""
    deadline: float
    """End by `CLOCK_BOOTTIME` in seconds."""


class State(Struct):
    version: int
    machine: str
    domain: str
    epochs: dict[str, str] = {}
    """Of the link, by class."""
    acked: dict[str, Acked] = {}
    """By class."""
    previous: dict[str, Acked] = {}
    """The previous run by class."""
    checkpoint: dict[str, Checkpoint] = {}
    """The newest by class."""
    positions: Positions = {}
    unplaced: list[str] = []
    """Inputs whose position may be lost with an earlier state file."""
    command: str | None = None
    """Position of the last begun command (`agent.leaf.commands.cursor`)."""
    commands_run: RecentCommands = msgspec.field(default_factory=RecentCommands)
    command_epoch: str | None = None
    """Of the command mirror."""
    command_agreed: CommandKey | None = None
    """Newest command of this mirror found at the hub."""
    settings: dict[str, Setting] = {}
    """Temporary settings by name."""
    clock: Timeline | None = None
    corrections: list[Correction] = []
    """Clock corrections missing in the streams."""
    lost: dict[str, list[LostStream]] = {}
    """Lost or restored streams by class."""
    stale: list[str] = []
    """Inputs whose position is older than their stored data, from a restored state."""
    doubts: dict[str, list[Doubt]] = {}
    """Newest doubts about lines by class."""
    written: str = ""
    """Random name of this file, referenced by later writes."""
    earlier: dict[str, list[Checkpoints]] = {}
    """Earlier checkpoints by class."""
    spread: float = 0.0
    """The hub's last time for all leaves' links (`Answer.spread_seconds`)."""
    made_again: dict[str, MadeAgain] = {}
    """By class."""
    losses: dict[str, Loss] = {}
    """The newest by class."""
    windows: dict[str, int] = {}
    """Messages that may be under way over the link, by class."""
    records: dict[str, RecordId] = {}
    """The last signed ledger record known to be stored, by class."""
    unconfirmed: dict[str, int] = {}
    """Newest reading of each removed class not confirmed by the hub."""

    def newest_reading(self, cls: str) -> int:
        """Return the newest sequence with readings of a class's stream, 0 if unknown."""
        acked = self.acked.get(cls)
        return max(self.unconfirmed.get(cls, 0), 0 if acked is None else acked.reading)

    def removed_classes(self, configured: Iterable[str]) -> list[str]:
        """Return removed classes that had a stream."""
        return sorted({*self.epochs, *self.positions}.difference(configured))

    def place(self, input_name: str, cls: str, position: PullPosition) -> None:
        """Set an input's position."""
        self.positions.setdefault(cls, {})[input_name] = position
        if input_name in self.unplaced:
            self.unplaced.remove(input_name)

    def lose(self, cls: str, acked: Acked, kept: int | None = None) -> None:
        """Record a lost stream, or one that `kept` a part; missing direct messages can be named by sequence
        only.
        """
        known = self.lost.setdefault(cls, [])
        known.append(LostStream(acked.created, acked.last, kept, acked.at))
        del known[:-LOST_STREAMS]

    def doubt(self, cls: str, doubt: Doubt) -> None:
        """Record possibly doubled or missing lines, replacing a doubt of the same place."""
        others = [one for one in self.doubts.get(cls, ()) if one.place != doubt.place]
        self.doubts[cls] = [*others, doubt][-DOUBTS:]

    def learn(self, cls: str, recorded: Sequence[LostStream]) -> None:
        """Apply a ledger record's lost streams."""
        known = self.lost.get(cls, [])
        self.lost[cls] = [*(store for store in known if store not in recorded), *recorded][-LOST_STREAMS:]


class CheckpointLog:
    """Records agreed checkpoints in the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._recorded_at: dict[str, float] = {}

    def agree(self, cls: str, checkpoint: Checkpoint, now: float) -> None:
        """Record a checkpoint agreed at a monotonic time."""
        self._state.checkpoint[cls] = checkpoint
        if now >= self._recorded_at.get(cls, now - SPACING_SECONDS) + SPACING_SECONDS:
            self._recorded_at[cls] = now
            self._state.earlier[cls] = with_checkpoint(self._state.earlier.get(cls, []), checkpoint)


def with_checkpoint(groups: list[Checkpoints], checkpoint: Checkpoint) -> list[Checkpoints]:
    """Add a checkpoint and drop expired ones."""
    rows = list(_rows(groups))
    if rows and rows[-1][1] == checkpoint:
        return groups
    newest = rows[-1][0] + 1 if rows else 1
    rows.append((newest, checkpoint))
    return _grouped((number, row) for number, row in rows if _is_retained(number, newest))


def earlier_checkpoints(groups: list[Checkpoints]) -> list[Checkpoint]:
    """Return all checkpoints, oldest first."""
    return [checkpoint for _, checkpoint in _rows(groups)]


def forget_checkpoints(state: State, cls: str, start: int) -> None:
    """Keep only checkpoints before a new epoch's start."""
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
