"""Chooses rows and files to count, by domain, time span and earlier audits."""

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
"""Domain and class, as far as known."""


class UnsettledError(Exception):
    """Settled data must be read again; the text has the reason."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """The counted part: a `domain` (None for all), and moments from `since` to before `until` (microseconds
    since 1970).
    """

    domain: str | None = None
    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> list[Condition]:
        """Return the conditions on rows."""
        return [] if self.domain is None else [("domain", "=", self.domain)]

    @property
    def is_span(self) -> bool:
        """Whether the part is limited in time."""
        return self.since is not None or self.until is not None

    def within(self, moment: int) -> bool:
        after = self.since is None or moment >= self.since
        return after and (self.until is None or moment < self.until)

    def chosen(self, rows: pa.Table) -> pa.Table:
        return (
            rows
            if self.domain is None
            else rows.filter(pc.fill_null(pc.equal(rows["domain"].cast(pa.string()), self.domain), False))
        )

    def spanned(self, held: RowCounts) -> RowCounts:
        """Return the bronze counts within the span."""
        if not self.is_span:
            return held
        first = np.iinfo(np.int64).min if self.since is None else self.since
        end = np.iinfo(np.int64).max if self.until is None else self.until
        own = (pc.field("moment") >= first) & (pc.field("moment") < end)
        return held._replace(batches=held.batches.filter(own), direct=held.direct.filter(own))


ALL: Final = ScanPart()


@dataclass(frozen=True, slots=True)
class Past:
    """Settled data and its counts."""

    until: int = 0
    """Rows arriving earlier are settled (microseconds since 1970); 0 for none."""
    known: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """Files with settled rows by table, and whether all their rows are settled."""
    records: LedgerRecords = field(default_factory=LedgerRecords)
    ranges: SeenNumbers = field(default_factory=SeenNumbers)
    rows: Counter[History] = field(default_factory=Counter)
    """Rows in bronze per history."""
    runs: dict[Run, dict[str, int]] = field(default_factory=dict)
    findings: dict[Run, list[str]] = field(default_factory=dict)
    """Sentences about runs without missing or doubled readings."""
    classes: dict[Class, dict[str, int]] = field(default_factory=dict)
    hours: pa.Table = field(default_factory=SETTLED.empty_table)

    def files(self, table: str) -> Mapping[str, bool]:
        return self.known.get(table, {})


NOTHING_SETTLED: Final = Past()


class ArrivedSpan(NamedTuple):
    """Rows by arrival: from a moment to before another (microseconds since 1970); None for any,
    even unknown.
    """

    first: int | None = None
    end: int | None = None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Return the rows in the span; an unknown arrival is later than any."""
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
    """The part of a file to count."""

    table: str
    path: Place
    offsets: Offsets
    begun: Offsets
    share: Share
    part: ScanPart
    span: ArrivedSpan = AT_ANY_TIME
    cut: int = 0
    """Rows arriving earlier are old (microseconds since 1970)."""
    old: bool | None = False
    """Whether all rows are old; None to check each row."""
    rows: int = 0
    """Rows by the log."""

    @property
    def needs_arrival(self) -> bool:
        """Whether rows must be split by arrival."""
        return self.span != AT_ANY_TIME or self.old is None

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Return the rows to count, before sharing."""
        return self.span.chosen(self.part.chosen(rows))

    def old_rows(self, rows: pa.Table) -> Mask:
        if self.old is not None:
            return np.full(rows.num_rows, self.old)
        found: Mask = pc.fill_null(pc.less(rows["arrived"].cast(pa.int64()), self.cut), False).to_numpy()
        return found


def pieces(
    table: Table, past: Past, cut: int, of: FileShare, where: Sequence[Condition] = ()
) -> Iterator[FileShare]:
    """Yield the table's files with unsettled rows, as `of` describes."""
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
