"""What arrived, counted: bronze against readings and quarantine, by run, by class for messages of no run, and
by hour. It holds a bounded share of the batches at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hub_jobs.audit import by_hour as hours
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.by_hour import Hour
from hub_jobs.audit.claims.accounts import Arrived, never_came_of
from hub_jobs.audit.claims.ledgers import LedgerClaims, Run
from hub_jobs.audit.rows import lookups, reconcile, scan
from hub_jobs.audit.rows.count_rows import Mask
from hub_jobs.audit.rows.grouping import Names, grouped, summed
from hub_jobs.audit.rows.mismatches import LISTED, BrokenBatches, StrayRows, StrayScan, run_of
from hub_jobs.audit.rows.reconcile import Messages
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.seen import SeenNumbers, batch_space

Class = tuple[str | None, str | None]
"""Domain and class, as far as they are known."""


class RowTotals(NamedTuple):
    """What arrived of every run, of messages that are of none, and all of it by hour. Of rows of readings and
    quarantine whose message bronze has not: those of runs in `strays`, sentences about the others in
    `unexplained`. `unnamed` are sentences about what was not looked at one by one."""

    runs: dict[Run, Arrived]
    classes: dict[Class, Arrived]
    hours: list[Hour]
    strays: dict[Run, StrayRows]
    unexplained: list[str]
    unnamed: list[str]


class _Sums:
    """Counts by a key, with the sentences that go with them."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str | None, ...], dict[str, int]] = {}
        self.findings: dict[tuple[str | None, ...], list[str]] = {}

    def add(self, names: list[Names], of: Numbers, **counts: Numbers) -> None:
        (ids,), size, firsts = grouped([of], [np.zeros_like(of)])
        sums = {name: summed(ids, size, values) for name, values in counts.items()}
        for at, first in enumerate(firsts.tolist()):
            known = self.counts.setdefault(names[int(of[first])], {})
            for name, values in sums.items():
                known[name] = known.get(name, 0) + values[at]

    def arrived(self) -> Iterator[tuple[tuple[str | None, ...], Arrived]]:
        for key, counts in self.counts.items():
            yield (
                key,
                Arrived(
                    in_bronze=counts["in_bronze"],
                    pending=counts["pending"],
                    in_readings=counts["in_readings"],
                    quarantined=counts["quarantined"],
                    missing=counts["missing"],
                    doubled=counts["doubled"],
                    dead=counts.get("dead", 0),
                    findings=tuple(self.findings.get(key, ())),
                ),
            )


def total_rows(tables: AuditTables, claims: LedgerClaims, held: BronzeContents) -> RowTotals:
    """Count everything that the tables hold."""
    runs, classes, by_hour = _Sums(), _Sums(), list(_lost_by_hour(tables, claims, held.here))
    strays, broken = StrayScan(held), BrokenBatches(tables, runs.findings)
    for share in tables.shares:
        found = scan.count(tables, share)
        parts = found["bronze"], found["readings"], found["quarantine"]
        batches, messages = reconcile.batches(*parts), reconcile.messages(*parts)
        broken.name(batches)
        _name_direct(messages, classes.findings, broken.put_aside(messages))
        runs.add(batches.runs, batches.run, **batches.counts)
        classes.add(messages.owners, messages.owner, **messages.counts)
        by_hour += hours.of_batches(batches) + hours.of_messages(messages)
        # Of a span of time only bronze is counted.
        if not tables.part.is_span:
            strays.add_batches(batches.strays)
            strays.add_messages(messages.strays)
            strays.add_named(found["quarantine"], first=share.which == 0)
    return RowTotals(
        {run_of(names): arrived for names, arrived in runs.arrived()},
        {(domain, cls): arrived for (domain, cls), arrived in classes.arrived()},
        hours.merged(by_hour),
        strays.runs,
        strays.sentences(),
        broken.sentences(),
    )


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
    """The batches that never came, by the hour in which they were sealed as far as is known."""
    lost = {
        key: never_came_of(
            claims.ledgers.get(key), claims.remembered.get(key), seen.ranges(batch_space(*key))
        )
        for key in claims.ledgers.keys() | claims.remembered.keys()
    }
    lost = {key: ranges for key, ranges in sorted(lost.items())[:LISTED] if ranges}
    known = lookups.moments(tables, list(lost)) if lost else {}
    for (domain, cls, run), ranges in lost.items():
        numbers, moments = known.get((domain, cls, run), ([], []))
        for first, last in ranges[:LISTED]:
            moment = hours.about(numbers, moments, first)
            if moment is not None:
                yield Hour(domain, cls, moment, lost=last - first + 1)
