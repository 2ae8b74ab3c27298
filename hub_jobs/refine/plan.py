"""What one pass of `refine` works on: which rows of bronze, which of them are dropped, and how they are
shared out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa

from hub_jobs.refine import dedup
from hub_jobs.refine.clocks import Corrections
from hub_jobs.refine.dedup import DedupDecision, Key
from hub_jobs.refine.task import RefinePart
from hub_jobs.tables import Condition, Table, stream_history
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History
from hub_jobs.tables.scan import batches, rows
from hub_jobs.tables.seen import ID_COLUMNS, SeenNumbers, identities
from hub_jobs.tables.stream_history import StreamHistory, file_histories

MAX_ROWS: Final = 1_000_000
"""Rows of bronze in a pass: the driver holds their identities, about 300 bytes each."""
MAX_BYTES_A_CORE: Final = 128 * 1024**2
"""Bytes of bronze in a pass for each core: about half a minute of work, after which a run may be stopped."""
_PART_BYTES: Final = 64 * 1024**2

Line = tuple[int, int | None]
"""A hub sequence and a line of that message, None for all of it."""


class RefineTables(NamedTuple):
    """The snapshots that a pass is planned on and committed to."""

    bronze: Table
    readings: Table
    quarantine: Table


class BronzeFile(NamedTuple):
    """A file of bronze and the sequences it holds."""

    path: Place
    first: int
    last: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows of one incarnation above `after` and up to `to`, and the files they are in."""

    one: StreamHistory
    after: int
    to: int
    files: list[BronzeFile]

    @property
    def history(self) -> History:
        """Its stream and incarnation."""
        return self.one.history


@dataclass(frozen=True, slots=True)
class Pass:
    """What is to be refined; `before` is every incarnation with what is refined of it now. `resumed` when a
    run that ended between its two commits had begun just this."""

    increments: list[Increment]
    before: list[StreamHistory]
    resumed: bool

    @property
    def after(self) -> list[StreamHistory]:
        """Every incarnation as it is refined once the pass is committed."""
        ends = {increment.history: increment.to for increment in self.increments}
        return [replace(one, done=ends.get(one.history, one.done)) for one in self.before]

    @property
    def offsets(self) -> dict[str, int]:
        """The transactions of its commits."""
        return {increment.one.refined: increment.to for increment in self.increments}


def plan(tables: RefineTables) -> Pass | None:
    """All that is to be refined, or what a run that ended between its two commits had begun; None when there
    is nothing."""
    known = stream_history.all_of(tables.bronze)
    before = stream_history.refined(known, tables.readings)
    begun = [tables.quarantine.offset(one.refined) or 0 for one in known]
    resumed = any((one.done or 0) < to for one, to in zip(before, begun, strict=True))
    ends = begun if resumed else [one.done or 0 for one in known]
    files = _files(tables.bronze)
    increments = [
        Increment(one, one.done or 0, to, _overlapping(files, one, one.done or 0, to))
        for one, to in zip(before, ends, strict=True)
        if to > (one.done or 0)
    ]
    if not increments:
        return None
    return Pass(increments, before, resumed)


def bounded(planned: Pass, cores: int) -> Pass:
    """What of a plan one pass on so many cores takes; one that was begun is finished as it was."""
    if planned.resumed:
        return planned
    return replace(planned, increments=list(_first(planned.increments, cores * MAX_BYTES_A_CORE)))


def decide(bronze: Table, planned: Pass, seen: SeenNumbers) -> DedupDecision:
    """Which rows of the pass are repeats. Afterwards `seen` knows the rows of the pass too."""
    pieces = [
        ids
        for one in planned.increments
        for ids in identities(bronze, replace(one.one, done=one.to), one.after)
    ]
    if not pieces:
        return DedupDecision()
    ids = pa.concat_tables(pieces).combine_chunks()
    refined = {one.history: one.done or 0 for one in planned.before}

    def earlier(space: str, first: int, last: int) -> dict[Key, set[bytes]]:
        return _digests(bronze, refined, space, first, last)

    decision = dedup.decide(ids, seen, earlier)
    seen.add(ids)
    return decision


def named(quarantine: Table, planned: Pass) -> dict[History, frozenset[Line]]:
    """What of the pass is in quarantine already, because a run ended between its commits."""
    if not planned.resumed:
        return {}
    found = {}
    for one in planned.increments:
        begun = rows(quarantine, ["seq", "line"], one.one.rows(one.after, one.to))
        found[one.history] = frozenset(zip(begun["seq"].to_pylist(), begun["line"].to_pylist(), strict=True))
    return found


def parts(
    lake: Place,
    planned: Pass,
    decision: DedupDecision,
    known: dict[History, frozenset[Line]],
    corrections: Corrections,
    cores: int,
) -> list[RefinePart]:
    """The tasks of a pass: files of one incarnation together, so that small ones share a task and every
    core has one."""
    total = sum(file.size for one in planned.increments for file in one.files)
    least = min(_PART_BYTES, total // cores + 1)
    return [
        RefinePart(
            lake=lake,
            paths=[file.path for file in group],
            history=one.history,
            after=one.after,
            to=one.to,
            repeated=frozenset(decision.repeated.get(one.history, ())),
            other_content=decision.other_content.get(one.history, {}),
            named=known.get(one.history, frozenset()),
            corrections=corrections,
        )
        for one in planned.increments
        for group in _groups(one.files, least)
    ]


def _files(bronze: Table) -> dict[History, list[BronzeFile]]:
    """The files of every incarnation, in the order of their sequences."""
    found: dict[History, list[BronzeFile]] = {}
    for one in file_histories(bronze):
        file = BronzeFile(bronze.path / one.path, one.first, one.last, one.rows, one.size)
        found.setdefault(one.history, []).append(file)
    return {history: sorted(mine, key=lambda file: file.first) for history, mine in found.items()}


def _overlapping(
    files: dict[History, list[BronzeFile]], one: StreamHistory, after: int, to: int
) -> list[BronzeFile]:
    return [file for file in files[one.history] if file.last > after and file.first <= to]


def _first(increments: Sequence[Increment], most_bytes: int) -> Iterator[Increment]:
    """What of the increments one pass takes: at least a file, then no more than its bounds."""
    taken_rows = taken_bytes = 0
    for one in increments:
        to = one.after
        for file in sorted(one.files, key=lambda file: file.last):
            taken_rows += file.rows
            taken_bytes += file.size
            if taken_rows > file.rows and (taken_rows > MAX_ROWS or taken_bytes > most_bytes):
                if to > one.after:
                    yield replace(one, to=to, files=[each for each in one.files if each.first <= to])
                return
            to = min(file.last, one.to)
        yield one


def _groups(files: Sequence[BronzeFile], least: int) -> Iterator[list[BronzeFile]]:
    group: list[BronzeFile] = []
    for file in files:
        group.append(file)
        if sum(each.size for each in group) >= least:
            yield group
            group = []
    if group:
        yield group


def _digests(
    bronze: Table, refined: dict[History, int], space: str, first: int, last: int
) -> dict[Key, set[bytes]]:
    """The digests of refined rows by their number in a space (see `transforms.spaces`)."""
    kind, *names = space.split("/")
    columns, number = _SPACES[kind]
    where: list[Condition] = [(column, "=", name) for column, name in zip(columns, names, strict=True)]
    where += [(number, ">=", first), (number, "<=", last)]
    found: dict[Key, set[bytes]] = {}
    for batch in batches(bronze, ID_COLUMNS, where):
        for row in batch.select(["stream", "created", "seq", number, "digest"]).to_pylist():
            if row["seq"] <= refined.get((row["stream"], row["created"]), 0):
                found.setdefault((space, row[number]), set()).add(row["digest"])
    return found


_SPACES: Final = {
    "batch": (("domain", "class", "run"), "n"),
    "source": (("source_stream", "source_identity"), "source_seq"),
}
