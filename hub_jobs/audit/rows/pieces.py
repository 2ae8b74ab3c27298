"""Which rows of which files are counted: those of a domain or a span of time, and those that no audit before
has settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.audit.ledgers import LedgerRecords, Run
from hub_jobs.audit.rows.count_rows import Offsets, RowCounts, Share
from hub_jobs.tables.delta import Table
from hub_jobs.tables.parquet import is_own
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import History, Mask
from hub_jobs.tables.scan import Condition, bounds, file_paths, files
from hub_jobs.tables.schemas import SETTLED
from hub_jobs.tables.spaces import SeenNumbers
from hub_jobs.times import micros

Class = tuple[str | None, str | None]
"""Domain and class, as far as they are known."""


class UnsettledError(Exception):
    """What was settled must be read again; the text says why."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """What of the tables is counted: of a `domain` (None: of all) the batches and messages whose moment is
    from `since` on and before `until`, in microseconds since 1970."""

    domain: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> list[Condition]:
        """Which rows of each table are looked at."""
        return [] if self.domain is None else [("domain", "=", self.domain)]

    @property
    def is_span(self) -> bool:
        """Whether only a span of time is counted."""
        return self.since is not None or self.until is not None

    def within(self, moment: int) -> bool:
        """Whether a moment is in the span."""
        after = self.since is None or moment >= self.since
        return after and (self.until is None or moment < self.until)

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The rows that are of the domain."""
        return (
            rows
            if self.domain is None
            else rows.filter(pc.fill_null(pc.equal(rows["domain"].cast(pa.string()), self.domain), False))
        )

    def spanned(self, held: RowCounts) -> RowCounts:
        """What was counted of bronze, as far as it is of the span."""
        if not self.is_span:
            return held
        first = np.iinfo(np.int64).min if self.since is None else self.since
        end = np.iinfo(np.int64).max if self.until is None else self.until
        own = (pc.field("moment") >= first) & (pc.field("moment") < end)
        return held._replace(batches=held.batches.filter(own), direct=held.direct.filter(own))


ALL: Final = ScanPart()


@dataclass(frozen=True, slots=True)
class Past:
    """What is settled, and what it comes to."""

    until: int = 0
    """Rows that arrived before this are, in microseconds since 1970; 0 where nothing is."""
    known: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """By table the files that hold such rows, and whether all of their rows are."""
    records: LedgerRecords = field(default_factory=LedgerRecords)
    ranges: SeenNumbers = field(default_factory=SeenNumbers)
    rows: Counter[History] = field(default_factory=Counter)
    """How many rows of each history bronze has."""
    runs: dict[Run, dict[str, int]] = field(default_factory=dict)
    findings: dict[Run, list[str]] = field(default_factory=dict)
    """What there is to say of runs though nothing of them is missing or doubled."""
    classes: dict[Class, dict[str, int]] = field(default_factory=dict)
    hours: pa.Table = field(default_factory=SETTLED.empty_table)

    def files(self, table: str) -> Mapping[str, bool]:
        """The files of a table that hold settled rows."""
        return self.known.get(table, {})


NOTHING_SETTLED: Final = Past()


class ArrivedSpan(NamedTuple):
    """Rows that arrived from a moment on and before another, in microseconds since 1970; None: at any time,
    also where it is not known."""

    first: int | None = None
    end: int | None = None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """The rows that are of the span; one without its arrival is behind any."""
        if self == AT_ANY_TIME:
            return rows
        arrived = rows["arrived"].cast(pa.int64())
        if self.first is not None:
            rows = rows.filter(pc.fill_null(pc.greater_equal(arrived, self.first), True))
            arrived = rows["arrived"].cast(pa.int64())
        return rows if self.end is None else rows.filter(pc.less(arrived, self.end))


AT_ANY_TIME: Final = ArrivedSpan()


@dataclass(frozen=True, slots=True)
class FileShare:
    """A file of a table, and what of it is to be counted."""

    table: str
    path: Place
    offsets: Offsets
    begun: Offsets
    share: Share
    part: ScanPart
    span: ArrivedSpan = AT_ANY_TIME
    cut: int = 0
    """What arrived before this, in microseconds since 1970, is old."""
    old: bool | None = False
    """Whether all rows are, None where some may be and each has to be looked at."""
    rows: int = 0
    """How many the log says that it holds."""

    @property
    def needs_arrival(self) -> bool:
        """Whether its rows are distinguished by when they arrived."""
        return self.span != AT_ANY_TIME or self.old is None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Which of its rows are counted, but for the share."""
        return self.span.chosen(self.part.chosen(rows))

    def old_rows(self, rows: pa.Table) -> Mask:
        """Which rows arrived before the cut."""
        if self.old is not None:
            return np.full(rows.num_rows, self.old)
        found: Mask = pc.fill_null(pc.less(rows["arrived"].cast(pa.int64()), self.cut), False).to_numpy()
        return found


def pieces(
    table: Table, past: Past, cut: int, of: FileShare, where: Sequence[Condition] = ()
) -> Iterator[FileShare]:
    """The files of a table of which rows are not settled, each as `of` says."""
    found = files(table)
    names = ("path", "num_records", "min.arrived", "max.arrived")
    listed = {table.path / row[0]: row for row in zip(*(bounds(found, name) for name in names), strict=True)}
    known = past.files(table.name)
    for path in file_paths(table, where):
        name, rows, first, last = listed[path]
        if known.get(name):
            continue
        span = ArrivedSpan(first=past.until) if name in known else AT_ANY_TIME
        old: bool | None = None
        if not cut:
            old = False
        elif is_own(name) and first is not None and last is not None:
            before = [micros(moment) for moment in (first, last)]
            old = True if before[1] + 1 < cut else False if before[0] > cut + 1 else None
        yield replace(of, path=path, span=span, cut=cut, old=old, rows=rows or 0)
