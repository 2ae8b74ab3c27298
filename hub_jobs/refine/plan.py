"""Plans one pass of `refine`: its rows of bronze, dropped rows, and tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.refine import dedup
from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.dedup import DedupDecision, EarlierRows, Wanted
from hub_jobs.refine.task import RefinePart
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History, Numbers
from hub_jobs.tables.scan import Condition, batches, rows
from hub_jobs.tables.seen import SeenTable, identities
from hub_jobs.tables.spaces import BATCH_KEY, HUB_KEY, SOURCE_KEY, Places, by_batch, by_source, upto
from hub_jobs.tables.stream_history import FileHistory, StreamHistory, file_histories

MAX_ROWS: Final = 1_000_000
"""Rows of bronze in a pass; the driver holds about 300 bytes each."""
MAX_BYTES_A_CORE: Final = 128 * 1024**2
"""Bytes of bronze in a pass per core, about half a minute of work."""
_PART_BYTES: Final = 64 * 1024**2
_LEAST_BYTES: Final = 1024**2
"""Smallest task."""

Line = tuple[int, int | None]
"""A hub sequence and line of the message, None for all of it."""


class RefineTables(NamedTuple):
    """Snapshots for the plan and the commit of a pass."""

    bronze: Table
    readings: Table
    quarantine: Table

    def newest(self) -> RefineTables:
        """Return newest snapshots, bronze first, so that no refined row is missing in it. Raises
        `TableError`.
        """
        return RefineTables(self.bronze.newest(), self.readings.newest(), self.quarantine.newest())


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows of one history above `after` up to `to`, with their files."""

    history: StreamHistory
    after: int
    to: int
    files: list[FileHistory]
    named: int = 0
    """Sequence up to which `quarantine` is complete; above `to` for a started pass that this bronze does not
    cover.
    """

    @property
    def name(self) -> History:
        """The history's columns."""
        return self.history.history


@dataclass(frozen=True, slots=True)
class Pass:
    """The work of one pass."""

    increments: list[Increment]
    before: list[StreamHistory]
    """Every history with its refined sequence."""
    resumed: bool
    """Whether an ended run had started exactly this pass."""

    @property
    def after(self) -> list[StreamHistory]:
        """Every history as refined after the commit."""
        ends = {increment.name: increment.to for increment in self.increments}
        return [replace(history, done=ends.get(history.history, history.done)) for history in self.before]

    @property
    def sequences(self) -> int:
        return sum(increment.to - increment.after for increment in self.increments)

    @property
    def offsets(self) -> dict[str, int]:
        """Transactions of the commit to `readings`."""
        return {increment.history.refined: increment.to for increment in self.increments}

    @property
    def named(self) -> dict[str, int]:
        """Transactions of the commit to `quarantine`, which never decrease."""
        return {
            increment.history.refined: max(increment.to, increment.named) for increment in self.increments
        }


def plan(tables: RefineTables) -> Pass | None:
    """Return all unrefined rows, or the pass that a run left between its two commits; None without work.

    Rows missing in this bronze wait for a later pass, even if quarantine already covers them.
    """
    histories = stream_history.all_of(tables.bronze)
    before = stream_history.refined(histories, tables.readings)
    named = [tables.quarantine.offset(history.refined) or 0 for history in histories]
    held = [history.done or 0 for history in histories]
    begun = [min(to, end) for to, end in zip(named, held, strict=True)]
    resumed = any((history.done or 0) < to for history, to in zip(before, begun, strict=True))
    ends = begun if resumed else held
    new = [
        (history, history.done or 0, to, upto)
        for history, to, upto in zip(before, ends, named, strict=True)
        if to > (history.done or 0)
    ]
    if not new:
        return None
    files = _files(tables.bronze, min(after for _, after, _, _ in new))
    increments = [
        Increment(history, after, to, _overlapping(files.get(history.history, []), after, to), upto)
        for history, after, to, upto in new
    ]
    return Pass(increments, before, resumed)


def bounded(planned: Pass, cores: int) -> Pass:
    """Limit a plan to one pass on so many cores; a resumed pass stays as it was."""
    if planned.resumed:
        return planned
    return replace(planned, increments=list(_first(planned.increments, cores * MAX_BYTES_A_CORE)))


def decide(bronze: Table, planned: Pass, seen: SeenTable) -> DedupDecision:
    """Find repeats among the pass's rows, and add the rows to `seen`."""
    pieces = [
        ids
        for increment in planned.increments
        for ids in identities(bronze, replace(increment.history, done=increment.to), increment.after)
    ]
    if not pieces:
        return DedupDecision()
    ids = pa.concat_tables(pieces).combine_chunks()
    refined = {history.history: history.done or 0 for history in planned.before}
    places = Places.of(ids)
    decision = dedup.decide(ids, places, seen.ranges, partial(_earlier, bronze, refined))
    seen.add_placed(places)
    return decision


def quarantined(quarantine: Table, planned: Pass) -> dict[History, frozenset[Line]]:
    """Return the lines of the pass already quarantined by a run that ended between its commits."""
    if not planned.resumed:
        return {}
    found = {}
    for increment in planned.increments:
        where = increment.history.rows(increment.after, increment.to)
        lines = rows(quarantine, ["seq", "line"], where)
        found[increment.name] = frozenset(
            zip(lines["seq"].to_pylist(), lines["line"].to_pylist(), strict=True)
        )
    return found


def parts(
    lake: Place,
    planned: Pass,
    decision: DedupDecision,
    in_quarantine: dict[History, frozenset[Line]],
    corrections: Corrections,
    cores: int,
) -> list[RefinePart]:
    """Split the pass into tasks of about equal bytes; several tasks may read one file."""
    total = sum(file.size for increment in planned.increments for file in increment.files)
    share = max(_LEAST_BYTES, min(_PART_BYTES, -(-total // cores)))
    repeated = {
        history: np.sort(np.fromiter(sequences, np.int64)) for history, sequences in decision.repeated.items()
    }
    return [
        RefinePart(
            lake=lake,
            paths=[lake / "bronze" / file.path for file in _overlapping(increment.files, after, to)],
            history=increment.name,
            after=after,
            to=to,
            repeated=_within(repeated.get(increment.name), after, to),
            other_content=decision.other_content.get(increment.name, {}),
            quarantined=in_quarantine.get(increment.name, frozenset()),
            corrections=corrections,
        )
        for increment in planned.increments
        for after, to in _cut(increment, share)
    ]


def _cut(increment: Increment, share: int) -> Iterator[tuple[int, int]]:
    """Split an increment's sequences into ranges of about `share` bytes."""
    files = sorted(increment.files, key=lambda file: file.last)
    ends = np.minimum([increment.after, *(file.last for file in files)], increment.to)
    read = np.cumsum([0, *(file.size for file in files)])
    pieces = max(1, round(int(read[-1]) / share))
    edges = np.interp(np.linspace(0, int(read[-1]), pieces + 1), read, ends).astype(np.int64)
    edges[0], edges[-1] = increment.after, increment.to
    yield from pairwise(np.unique(edges).tolist())


def _within(sequences: Numbers | None, after: int, to: int) -> frozenset[int]:
    """Return the sequences of a part; each task gets only its own."""
    if sequences is None:
        return frozenset()
    first, end = np.searchsorted(sequences, [after, to], side="right")
    return frozenset(sequences[first:end].tolist())


def _files(bronze: Table, after: int) -> dict[History, list[FileHistory]]:
    """Return each history's files with sequences above `after`, in order."""
    found: dict[History, list[FileHistory]] = {}
    for file in sorted(file_histories(bronze, after), key=lambda file: file.first):
        found.setdefault(file.history, []).append(file)
    return found


def _overlapping(files: Iterable[FileHistory], after: int, to: int) -> list[FileHistory]:
    return [file for file in files if file.last > after and file.first <= to]


def _first(increments: Sequence[Increment], most_bytes: int) -> Iterator[Increment]:
    """Yield the increments of one pass: at least a file, then up to its bounds."""
    taken_rows = taken_bytes = 0
    for increment in increments:
        to = increment.after
        for file in sorted(increment.files, key=lambda file: file.last):
            taken_rows += file.rows
            taken_bytes += file.size
            if taken_rows > file.rows and (taken_rows > MAX_ROWS or taken_bytes > most_bytes):
                if to > increment.after:
                    files = [file for file in increment.files if file.first <= to]
                    yield replace(increment, to=to, files=files)
                return
            to = min(file.last, increment.to)
        yield increment


def _earlier(bronze: Table, refined: dict[History, int], wanted: Wanted) -> EarlierRows:
    """Return refined rows with these numbers in one scan."""
    numbers = wanted.numbers
    places, digests = [np.zeros(0, dtype=np.int64)], [pa.array([], pa.binary())]
    if numbers.codes.size:
        names = [wanted.names[code] for code in np.unique(numbers.codes).tolist()]
        key = BATCH_KEY if wanted.are_batches else SOURCE_KEY
        *columns, number = key
        parts = zip(*(name.split("/")[1:] for name in names), strict=True)
        where: list[Condition] = [
            (column, "in", set(values)) for column, values in zip(columns, parts, strict=True)
        ]
        where += [(number, ">=", int(numbers.numbers.min())), (number, "<=", int(numbers.numbers.max()))]
        for rows in batches(bronze, [*HUB_KEY, *key, "digest"], where):
            found = _places(rows, wanted)
            kept = np.flatnonzero((found >= 0) & upto(rows, refined))
            places.append(found[kept])
            digests += rows["digest"].take(pa.array(kept)).chunks
    return EarlierRows(np.concatenate(places), pa.concat_arrays(digests))


def _places(rows: pa.Table, wanted: Wanted) -> Numbers:
    """Return each row's position among the wanted numbers, or -1."""
    placed = by_batch(rows) if wanted.are_batches else by_source(rows)
    spaces = pc.index_in(pa.array(placed.names, pa.string()), value_set=pa.array(wanted.names, pa.string()))
    codes = np.append(pc.fill_null(spaces, -1).to_numpy(), -1).astype(np.int64)[placed.codes]
    return wanted.numbers.places(codes, placed.numbers)
