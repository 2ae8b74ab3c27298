"""Counts arrived rows by run, by class for direct messages, and by hour, a bounded share at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from hub_jobs.audit.account import Arrived
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.ledgers import LedgerClaims, Run
from hub_jobs.audit.rows import lookups, reconcile, scan
from hub_jobs.audit.rows.count_rows import RowCounts, Share, merged
from hub_jobs.audit.rows.hours import Hour, by_hour, hour_about, merged_hours
from hub_jobs.audit.rows.mismatches import LISTED, BrokenBatches, StrayRows, StrayScan, run_of
from hub_jobs.audit.rows.overlap import settled_too
from hub_jobs.audit.rows.pieces import Class
from hub_jobs.audit.rows.reconcile import BatchRows, Messages
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.grouping import Names, grouped, summed
from hub_jobs.tables.ranges import Mask, Numbers
from hub_jobs.tables.spaces import SeenNumbers, batch_space


class RowTotals(NamedTuple):
    """The counts of arrived rows."""

    runs: dict[Run, Arrived]
    classes: dict[Class, Arrived]
    """Messages without run."""
    hours: list[Hour]
    """All counts by hour."""
    strays: dict[Run, StrayRows]
    """Rows of runs without message in bronze."""
    unexplained: list[str]
    """Sentences about stray rows without run."""
    unnamed: list[str]
    """Sentences about unexamined rows."""
    settling: OldTotals


@dataclass(slots=True)
class OldTotals:
    """Counts of settled rows and rows that may be settled next."""

    runs: dict[Run, dict[str, int]]
    classes: dict[Class, dict[str, int]]
    hours: list[Hour]
    findings: dict[Run, list[str]]
    waiting: int | None = None
    """Arrival of the first row that can't be settled (microseconds since 1970); None for none, 0
    if unknown.
    """


class _Sums:
    def __init__(self, past: Mapping[Any, Mapping[str, int]]) -> None:
        self.counts: dict[tuple[str | None, ...], dict[str, int]] = {
            key: dict.fromkeys(_SUMMED, 0) | dict(counts) for key, counts in past.items()
        }
        self.findings: dict[tuple[str | None, ...], list[str]] = {}

    def add(self, names: list[Names], of: Numbers, sign: int = 1, **counts: Numbers) -> None:
        (ids,), size, firsts = grouped([of], [np.zeros_like(of)])
        sums = {name: summed(ids, size, values) for name, values in counts.items()}
        for at, first in enumerate(firsts.tolist()):
            known = self.counts.setdefault(names[int(of[first])], dict.fromkeys(_SUMMED, 0))
            for name, values in sums.items():
                known[name] += sign * values[at]

    def arrived(self) -> Iterator[tuple[tuple[str | None, ...], Arrived]]:
        for key, counts in self.counts.items():
            numbers: dict[str, Any] = dict(counts)
            yield key, Arrived(**numbers, findings=tuple(self.findings.get(key, ())))


_SUMMED: Final = ("in_bronze", "pending", "in_readings", "quarantined", "missing", "doubled", "dead")
_KEPT: Final = ("in_bronze", "in_readings", "quarantined", "dead")
"""Counts that are nonzero for rows in order."""


def total_rows(tables: AuditTables, claims: LedgerClaims, held: BronzeContents) -> RowTotals:
    """Count all rows of the tables. Raises `UnsettledError`."""
    past = tables.past
    totals = _Totals(tables, held, list(_lost_by_hour(tables, claims, held.here)))
    for share in tables.shares:
        totals.add(scan.count(tables, share), share)
    runs = {run_of(names): arrived for names, arrived in totals.runs.arrived()}
    for run, findings in past.findings.items():
        runs[run] = replace(runs[run], findings=tuple(dict.fromkeys((*findings, *runs[run].findings))))
    return RowTotals(
        runs,
        {(domain, cls): arrived for (domain, cls), arrived in totals.classes.arrived()},
        merged_hours(totals.hours),
        totals.strays.runs,
        totals.strays.sentences(),
        totals.broken.sentences(),
        totals.settling(),
    )


class _Totals:
    def __init__(self, tables: AuditTables, held: BronzeContents, lost: list[Hour]) -> None:
        past = tables.past
        self._tables = tables
        self.runs, self.classes, self.hours = _Sums(past.runs), _Sums(past.classes), lost
        self._old_runs, self._old_classes = _Sums(past.runs), _Sums(past.classes)
        self._old_hours: list[Hour] = []
        self._waiting: list[int] = []
        self.strays, self.broken = StrayScan(held), BrokenBatches(tables, self.runs.findings)

    def add(self, new: dict[str, RowCounts], share: Share) -> None:
        again = settled_too(self._tables, new, share)
        found = new if again is None else {name: merged(name, [new[name], again[name]]) for name in new}
        batches, messages = self._reconciled(found)
        self.broken.name(batches)
        _name_direct(messages, self.classes.findings, self.broken.put_aside(messages))
        self._add(batches, messages, sign=1)
        if again is not None:
            before = self._reconciled(again)
            BrokenBatches(self._tables, {}).name(before[0])
            self._add(*before, sign=-1)
        self._waiting += batches.arrived[batches.waiting].tolist()
        self._waiting += messages.moment[messages.waiting].tolist()
        # Of a span of time only bronze is counted.
        if not self._tables.part.is_span:
            self.strays.add_batches(batches.strays)
            self.strays.add_messages(messages.strays)
            self.strays.add_named(new["quarantine"], first=share.which == 0)

    def settling(self) -> OldTotals:
        unknown = bool(self.strays.runs or self.strays.sentences() or self._tables.unreadable)
        return OldTotals(
            {run_of(names): _kept(counts) for names, counts in self._old_runs.counts.items()},
            {(domain, cls): _kept(counts) for (domain, cls), counts in self._old_classes.counts.items()},
            merged_hours(self._old_hours),
            self._findings(),
            0 if unknown else min(self._waiting, default=None),
        )

    def _findings(self) -> dict[Run, list[str]]:
        found = {run: list(findings) for run, findings in self._tables.past.findings.items()}
        for names, findings in self.broken.explained.items():
            known = found.setdefault(run_of(names), [])
            known += [finding for finding in findings if finding not in known]
        return found

    def _reconciled(self, found: dict[str, RowCounts]) -> tuple[BatchRows, Messages]:
        parts = found["bronze"], found["readings"], found["quarantine"]
        kept_since = self._tables.kept_since
        return reconcile.batches(*parts, kept_since), reconcile.messages(*parts, kept_since)

    def _add(self, batches: BatchRows, messages: Messages, sign: int) -> None:
        """Add counts, or subtract settled ones, which were in order."""
        names = _SUMMED if sign > 0 else _KEPT
        of_batches, of_messages = _named(batches.counts, names), _named(messages.counts, names)
        self.runs.add(batches.runs, batches.run, sign, **of_batches)
        self.classes.add(messages.owners, messages.owner, sign, **of_messages)
        late = batches.count * (~batches.dead & batches.late)
        owners, owner = _owners_of(batches)
        self.hours += by_hour(owners, owner, batches.moment, sign, late=late, **of_batches)
        self.hours += by_hour(messages.owners, messages.owner, messages.moment, sign, **of_messages)
        old = batches.old
        counts = {name: numbers * old for name, numbers in of_batches.items()}
        self._old_runs.add(batches.runs, batches.run, sign, **counts)
        self._old_hours += by_hour(owners, owner, batches.moment, sign, late=late * old, **counts)
        self._old_classes.add(messages.owners, messages.owner, sign, **messages.old_counts)
        self._old_hours += by_hour(
            messages.owners, messages.owner, messages.moment, sign, **messages.old_counts
        )


def _owners_of(found: BatchRows) -> tuple[list[Names], Numbers]:
    owners = sorted({run[:2] for run in found.runs}, key=str)
    places = {owner: at for at, owner in enumerate(owners)}
    return owners, np.array([places[run[:2]] for run in found.runs] or [0])[found.run]


def _kept(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in _KEPT}


def _named(counts: Mapping[str, Numbers], names: Sequence[str]) -> dict[str, Numbers]:
    return {name: numbers for name, numbers in counts.items() if name in names}


def _name_direct(found: Messages, findings: dict[tuple[str | None, ...], list[str]], aside: Mask) -> None:
    wrong = np.flatnonzero((found.difference != 0) & ~aside)
    room = max(LISTED - sum(map(len, findings.values())), 0)
    for at in wrong[:room].tolist():
        verb = (
            "is missing from readings"
            if found.difference[at] > 0
            else "is in readings or quarantine more than once"
        )
        owner = found.owners[found.owner[at]]
        stream, identity = found.sources[found.source[at]]
        findings.setdefault(owner, []).append(
            f"{owner[0]}: message {found.seq[at]} of {stream} ({identity}) {verb}"
        )


def _lost_by_hour(tables: AuditTables, claims: LedgerClaims, seen: SeenNumbers) -> Iterator[Hour]:
    lost = {
        key: claims.of(key).never_came(seen.ranges(batch_space(*key)))
        for key in claims.ledgers.keys() | claims.remembered.keys()
    }
    lost = {key: ranges for key, ranges in sorted(lost.items())[:LISTED] if ranges}
    known = lookups.moments(tables, list(lost)) if lost else {}
    for (domain, cls, run), ranges in lost.items():
        numbers, moments = known.get((domain, cls, run), ([], []))
        for first, last in ranges[:LISTED]:
            moment = hour_about(numbers, moments, first)
            if moment is not None:
                yield Hour(domain, cls, moment, lost=last - first + 1)
