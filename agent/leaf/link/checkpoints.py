"""The checkpoints on which leaf and hub agreed, the older the sparser: when the leaf's store is restored from
a backup, the newest that it still holds is where both sides last held the same.

They are counted, not timed: a clock that is set would thin them out wrongly. At ten seconds from one
announcement to the next they are those of the last two minutes, one a minute of the last hour and one an hour
of the last week in which data flowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from agent.contract import Checkpoint
from agent.leaf.state import Checkpoints, State

SPACING_SECONDS: Final = 9.0
"""The least seconds from one recorded checkpoint to the next: an agent may announce itself more often."""
RETENTION: Final = ((1, 12), (6, 60), (360, 168))
"""Of every n-th checkpoint, so many are retained: (n, number)."""


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


def earlier(groups: list[Checkpoints]) -> list[Checkpoint]:
    """All checkpoints, oldest first."""
    return [checkpoint for _, checkpoint in _rows(groups)]


def forget(state: State, cls: str, start: int) -> None:
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
