"""The places on which leaf and hub agreed, the older the sparser: where an older copy of the leaf's store is
restored, the newest of them that it still holds is where both sides last held the same.

They are counted, not timed: a clock that is set would thin them out wrongly. At the ten seconds from one
announcement to the next they are those of the last two minutes, one a minute of the last hour and one an hour
of the last week in which data flowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from agent.contract import Checkpoint
from agent.leaf.state import Checkpoints, State

SPACING_SECONDS: Final = 9.0
"""Seconds from one that is noted to the next at least: an agent may announce itself more often."""
RETENTION: Final = ((1, 12), (6, 60), (360, 168))
"""Of each so many, so many."""


class CheckpointLog:
    """Enters what both sides agree on into the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._noted_at: dict[str, float] = {}

    def agree(self, cls: str, checkpoint: Checkpoint, now: float) -> None:
        """Both sides hold the same here, at a monotonic time."""
        self._state.checkpoint[cls] = checkpoint
        if now >= self._noted_at.get(cls, now - SPACING_SECONDS) + SPACING_SECONDS:
            self._noted_at[cls] = now
            self._state.earlier[cls] = with_checkpoint(self._state.earlier.get(cls, []), checkpoint)


def with_checkpoint(groups: list[Checkpoints], checkpoint: Checkpoint) -> list[Checkpoints]:
    """With one more, and without those that are kept no longer."""
    rows = list(_rows(groups))
    if rows and rows[-1][1] == checkpoint:
        return groups
    newest = rows[-1][0] + 1 if rows else 1
    rows.append((newest, checkpoint))
    return _grouped((number, one) for number, one in rows if _is_kept(number, newest))


def earlier(groups: list[Checkpoints]) -> list[Checkpoint]:
    """All of them, oldest first."""
    return [one for _, one in _rows(groups)]


def forget(state: State, cls: str, start: int) -> None:
    """An epoch begins at this sequence: only what stands before it is still agreed on."""
    rows = [(number, one) for number, one in _rows(state.earlier.get(cls, [])) if one.leaf_seq < start]
    state.earlier[cls] = _grouped(rows)
    known = state.checkpoint.get(cls)
    if known is not None and known.leaf_seq >= start:
        del state.checkpoint[cls]
        if rows:
            state.checkpoint[cls] = rows[-1][1]


def _is_kept(number: int, newest: int) -> bool:
    return any(number % each == 0 and newest - number < each * count for each, count in RETENTION)


def _rows(groups: Iterable[Checkpoints]) -> Iterator[tuple[int, Checkpoint]]:
    yield from sorted(
        (number, Checkpoint(leaf_seq, f"{group.ids}{end}", group.stream, hub_seq))
        for group in groups
        for number, leaf_seq, end, hub_seq in group.rows
    )


def _grouped(rows: Iterable[tuple[int, Checkpoint]]) -> list[Checkpoints]:
    groups: dict[tuple[str, str], Checkpoints] = {}
    for number, one in rows:
        run, dash, end = one.message_id.rpartition("-")
        group = groups.setdefault((run, one.hub_stream), Checkpoints(run + dash, one.hub_stream, []))
        group.rows.append((number, one.leaf_seq, end, one.hub_seq))
    return list(groups.values())
