"""Batches that are cut together (see `plain_lines`), so that numpy and Arrow have many lines at once. A batch
of which anything is in doubt, the shape of a line or a value, is given back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.columns import Fields, columns_of, joined
from hub_jobs.refine.messages import BatchText, BronzeMessage
from hub_jobs.refine.plain_lines import Cut, Shape, cut
from hub_jobs.refine.reading_rows import LinesOfMessage, reading_rows
from hub_jobs.tables.schemas import READINGS

_MOST_BYTES: Final = 4 * 1024**2
"""Of lines that are cut at once: each quote of them takes eight bytes more."""
_PAUSE: Final = 32
"""For so many times as many batches as were mostly cut in vain the next of their shape are not tried."""
Batch = tuple[BronzeMessage, BatchText]


class PlainBatches:
    """Batches that wait to be cut."""

    def __init__(self) -> None:
        self._waiting: dict[Shape, list[Batch]] = {}
        self._paused: dict[Shape, int] = {}

    def takes(self, shape: Shape) -> bool:
        """Whether to add a batch whose first line has the shape: not for a while where others of the shape
        could not be cut, for to try costs half as much as to decode."""
        left = self._paused.get(shape, 0)
        self._paused[shape] = max(left - 1, 0)
        return not left

    def add(self, shape: Shape, batch: Batch) -> None:
        """Add a batch whose first line has the shape."""
        self._waiting.setdefault(shape, []).append(batch)

    def drain(self, corrections: Corrections) -> tuple[pa.Table, list[Batch]]:
        """The readings of the batches, and those batches that are to be decoded line by line."""
        waiting, self._waiting = self._waiting, {}
        taken: list[Batch] = []
        left: list[Batch] = []
        fields: list[Fields] = []
        for shape, batches in waiting.items():
            for piece in _pieces(batches):
                before = len(left)
                for some, found in _cut(shape, piece, left):
                    taken += some
                    fields.append(found)
                if 2 * (len(left) - before) > len(piece):
                    self._paused[shape] = _PAUSE * len(piece)
        if not taken:
            return READINGS.empty_table(), left
        rows, wrong = _rows(taken, joined(fields), corrections)
        return rows, left + [taken[at] for at in wrong]


def _pieces(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    size = first = 0
    for at, (_, content) in enumerate(batches):
        if size and size + len(content.text) > _MOST_BYTES:
            yield batches[first:at]
            size, first = 0, at
        size += len(content.text)
    yield batches[first:]


def _cut(
    shape: Shape, batches: Sequence[Batch], left: list[Batch]
) -> Iterator[tuple[Sequence[Batch], Fields]]:
    """Batches and their fields; the others are added to what is left."""
    for some, found in _attempts(shape, batches):
        taken = [False] * len(some) if found is None else found.taken.tolist()
        left += [batch for batch, is_taken in zip(some, taken, strict=True) if not is_taken]
        if found is not None and found.fields is not None:
            yield [batch for batch, is_taken in zip(some, taken, strict=True) if is_taken], found.fields


def _attempts(shape: Shape, batches: Sequence[Batch]) -> Iterator[tuple[Sequence[Batch], Cut | None]]:
    """All batches as they are cut, or each half where a value of them can't be cut."""
    found = cut(shape, [content.text for _, content in batches])
    middle = len(batches) // 2
    if found is not None or not middle:
        yield batches, found
        return
    for half in (batches[:middle], batches[middle:]):
        yield half, cut(shape, [content.text for _, content in half])


def _rows(
    batches: Sequence[Batch], fields: Fields, corrections: Corrections
) -> tuple[pa.Table, Sequence[int]]:
    """The rows of `readings`, and the places of batches with a value that may not be, of which there are
    none."""
    parts: list[LinesOfMessage] = [
        (message, np.arange(content.lines, dtype=np.int32)) for message, content in batches
    ]
    lines = columns_of(fields)
    rows = reading_rows(parts, lines, corrections)
    if not lines.wrong.any():
        return rows, []
    owner = np.repeat(np.arange(len(parts)), [numbers.size for _, numbers in parts])
    wrong = np.unique(owner[lines.wrong])
    return rows.filter(pa.array(~np.isin(owner, wrong))), wrong.tolist()
