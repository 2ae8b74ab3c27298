"""Names messages by key columns and numbers them in spaces. Pure.

A space is a run's batches, a source's sequences or one history of a hub stream. Ranges store numbers, so a
million messages of one run cost two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.contract.ranges import Range, union, without
from hub_jobs.tables.grouping import different_rows, plain_texts
from hub_jobs.tables.ranges import CodedRanges, History, Mask, Numbers

BATCH: Final = ("domain", "class", "run")
SOURCE: Final = ("source_stream", "source_identity")
HISTORY: Final = ("stream", "created")
BATCH_KEY: Final = (*BATCH, "n")
"""The columns that name a batch."""
SOURCE_KEY: Final = (*SOURCE, "source_seq")
"""The columns of a message's place in its leaf's stream."""
HUB_KEY: Final = (*HISTORY, "seq")
"""The columns of a message's place in the hub's stream."""
ID_COLUMNS: Final = (*HUB_KEY, *BATCH_KEY, *SOURCE_KEY, "digest")
"""The columns of bronze that identify a row's message."""
_LOOSE: Final = 1_000_000


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key columns that identify the message of a row of bronze or readings."""
    return tuple(row[name] for name in (SOURCE_KEY if row["n"] is None else BATCH_KEY))


def upto(rows: pa.Table, offsets: Mapping[History, int]) -> Mask:
    """Return a mask of rows up to the hub sequence given for their history; False for unlisted histories."""
    columns = [rows[name] for name in HISTORY]
    first, which = different_rows(columns)
    histories = zip(*(column.take(pa.array(first)).to_pylist() for column in columns), strict=True)
    ends = np.array([offsets.get((stream, created), -1) for stream, created in histories], dtype=np.int64)
    mask: Mask = pc.fill_null(rows["seq"], 0).to_numpy() <= ends[which]
    return mask


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows in spaces: `names`, and per row the space's index and its number; index -1 for rows
    without place.
    """

    names: list[str]
    codes: Numbers
    numbers: Numbers


class Places(NamedTuple):
    """Rows of bronze in all their spaces."""

    batches: Placed
    sources: Placed
    hub: Placed

    @staticmethod
    def of(ids: pa.Table) -> Places:
        """Return the places of rows with the `ID_COLUMNS`."""
        return Places(by_batch(ids), by_source(ids), _by_hub(ids))


def by_batch(ids: pa.Table) -> Placed:
    """Place batches by their number in their run."""
    return _placed(ids, "batch", BATCH_KEY)


def by_source(ids: pa.Table) -> Placed:
    """Place messages by their source sequence; the identity separates streams of one name."""
    return _placed(ids, "source", SOURCE_KEY)


def _by_hub(ids: pa.Table) -> Placed:
    return _placed(ids, "hub", HUB_KEY)


def _placed(ids: pa.Table, kind: str, key: tuple[str, ...]) -> Placed:
    *columns, number = key
    has_place = pc.is_valid(ids[number]).to_numpy()
    for name in columns:
        has_place &= pc.is_valid(ids[name]).to_numpy()
    rows = np.flatnonzero(has_place)
    found = ids.select(columns) if has_place.all() else ids.select(columns).take(pa.array(rows))
    first, which = different_rows(found.columns)
    placed = np.full(ids.num_rows, -1, dtype=np.int64)
    placed[rows] = which
    parts = plain_texts(found.take(pa.array(first))).columns
    names = pc.binary_join_element_wise(kind, *parts, "/").to_pylist()
    return Placed(names, placed, pc.fill_null(ids[number], 0).to_numpy())


class SeenNumbers:
    """Known numbers by space."""

    def __init__(self, spaces: Mapping[str, Iterable[Range]] | None = None) -> None:
        self.spaces: dict[str, list[Range]] = {name: union(ranges) for name, ranges in (spaces or {}).items()}

    def ranges(self, space: str) -> list[Range]:
        return self.spaces.get(space, [])

    def add(self, ids: pa.Table) -> None:
        """Add rows of bronze by their `ID_COLUMNS`."""
        for placed in Places.of(ids):
            has_place = placed.codes >= 0
            coded = CodedRanges.of_numbers(placed.codes[has_place], placed.numbers[has_place])
            spans = zip(coded.first.tolist(), coded.last.tolist(), strict=True)
            found: dict[str, list[Range]] = {}
            for code, span in zip(coded.codes.tolist(), spans, strict=True):
                found.setdefault(placed.names[code], []).append(span)
            for name, ranges in found.items():
                held = self.ranges(name)
                self.spaces[name] = union(held, ranges) if held else ranges


class Joining:
    """Joins known numbers part by part, merging adjacent ranges early to bound memory."""

    def __init__(self) -> None:
        self._loose: dict[str, list[Range]] = {}
        self._held = self._size = 0

    def add(self, part: SeenNumbers) -> None:
        for space, ranges in part.spaces.items():
            self._loose.setdefault(space, []).extend(ranges)
            self._size += len(ranges)
        if self._size > max(2 * self._held, _LOOSE):
            self._loose = {space: union(ranges) for space, ranges in self._loose.items()}
            self._held = self._size = sum(map(len, self._loose.values()))

    def seen(self) -> SeenNumbers:
        return SeenNumbers(self._loose)


def joined(*parts: SeenNumbers) -> SeenNumbers:
    """Join parts of known numbers."""
    joining = Joining()
    for part in parts:
        joining.add(part)
    return joining.seen()


def lacking(some: SeenNumbers, others: SeenNumbers) -> SeenNumbers:
    """Return the numbers in `some` but not in `others`."""
    found = {space: without(ranges, others.ranges(space)) for space, ranges in some.spaces.items()}
    return SeenNumbers({space: ranges for space, ranges in found.items() if ranges})


def numbers_in(known: pa.Table) -> SeenNumbers:
    """Convert rows of `seen` to numbers."""
    spaces: dict[str, list[tuple[int, int]]] = {}
    columns = (known[name].to_pylist() for name in ("space", "first", "last"))
    for space, first, last in zip(*columns, strict=True):
        spaces.setdefault(space, []).append((first, last))
    return SeenNumbers(spaces)


def batch_space(domain: str, cls: str, run: str) -> str:
    return f"batch/{domain}/{cls}/{run}"


def hub_space(stream: str, created: str) -> str:
    return f"hub/{stream}/{created}"


def source_space(stream: str, identity: str) -> str:
    return f"source/{stream}/{identity}"
