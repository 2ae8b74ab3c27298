"""What arrived, counted: bronze against readings and quarantine, by run, by class for messages of no run, and
by hour. It holds a bounded share of the batches at a time.

An hour (`Hour`) is that in which batches were sealed at the edge, if the clock there was synchronised, and
otherwise that in which they arrived at the hub."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from hub_jobs.audit.accounts import Arrived, never_came_of
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.in_transit import InTransit
from hub_jobs.audit.ledgers import LedgerClaims, Run
from hub_jobs.audit.rows import lookups, reconcile, scan
from hub_jobs.audit.rows.count_rows import Mask
from hub_jobs.audit.rows.grouping import Names, grouped, summed
from hub_jobs.audit.rows.mismatches import LISTED, BrokenBatches, StrayRows, StrayScan, run_of
from hub_jobs.audit.rows.reconcile import Batches, Messages
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.ranges import Numbers
from hub_jobs.tables.seen import SeenNumbers, batch_space

_HOUR: Final = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Hour:
    """Readings of a domain, class and hour; `late` ones are among those in bronze. `lost` is how many batches
    were acknowledged as stored and never came: the batch before says about when. `on_the_way` are
    messages that a leaf announced in that hour and that are not in bronze."""

    domain: str | None
    cls: str | None
    hour: datetime
    in_bronze: int = 0
    late: int = 0
    pending: int = 0
    in_readings: int = 0
    quarantined: int = 0
    dead: int = 0
    missing: int = 0
    doubled: int = 0
    lost: int = 0
    on_the_way: int = 0

    @property
    def state(self) -> str:
        """`missing`, `doubled`, `pending`, `late` or `complete`: the worst that holds."""
        for name in ("missing", "doubled", "pending", "late"):
            if getattr(self, name) or ((beside := _BESIDE.get(name)) and getattr(self, beside)):
                return name
        return "complete"


_BESIDE: Final = {"missing": "lost", "pending": "on_the_way"}
_COUNTS: Final = tuple(field.name for field in fields(Hour) if field.name not in ("domain", "cls", "hour"))


def hours_of_batches(found: Batches) -> list[Hour]:
    """The counts of batches by the hour."""
    owners = sorted({run[:2] for run in found.runs}, key=str)
    owner = np.array([owners.index(run[:2]) for run in found.runs] or [0])[found.run]
    late = found.count * (~found.dead & found.late)
    return _by_hour(owners, owner, found.moment, late=late, **found.counts)


def hours_of_messages(found: Messages) -> list[Hour]:
    """The same of messages that are of no batch; their hour is that of their arrival."""
    return _by_hour(found.owners, found.owner, found.moment, **found.counts)


def _by_hour(owners: Sequence[Names], owner: Numbers, moment: Numbers, **counts: Numbers) -> list[Hour]:
    hour = moment // _HOUR
    (ids,), size, firsts = grouped([owner], [hour])
    sums = {name: summed(ids, size, values) for name, values in counts.items()}
    found = []
    for at, first in enumerate(firsts.tolist()):
        domain, cls = owners[int(owner[first])]
        of_hour = {name: values[at] for name, values in sums.items()}
        found.append(Hour(domain, cls, _hour(int(hour[first])), *(of_hour.get(name, 0) for name in _COUNTS)))
    return found


def hours_of_transit(found: Iterable[InTransit]) -> list[Hour]:
    """What is on its way, in the hour in which its leaf announced it."""
    return [
        Hour(
            in_transit.domain,
            in_transit.cls,
            _hour(int(in_transit.announced_at.timestamp()) // 3600),
            on_the_way=in_transit.messages,
        )
        for in_transit in found
        if in_transit.messages
    ]


def merged_hours(hours: Iterable[Hour]) -> list[Hour]:
    """One for each domain, class and hour, in order."""
    sums: dict[tuple[str | None, str | None, datetime], list[int]] = {}
    for counted in hours:
        known = sums.setdefault((counted.domain, counted.cls, counted.hour), [0] * len(_COUNTS))
        for at, name in enumerate(_COUNTS):
            known[at] += getattr(counted, name)
    return [
        Hour(domain, cls, hour, *counts)
        for (domain, cls, hour), counts in sorted(sums.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def hour_about(numbers: Sequence[int], moments: Sequence[int], n: int) -> datetime | None:
    """The hour in which a batch that never came was sealed, as far as those that did tell: their numbers in
    order, and their moments in microseconds. That of the one before it, or of the first."""
    if not numbers:
        return None
    return _hour(moments[max(bisect_left(numbers, n) - 1, 0)] // _HOUR)


def _hour(number: int) -> datetime:
    return datetime.fromtimestamp(number * 3600, UTC)


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
        by_hour += hours_of_batches(batches) + hours_of_messages(messages)
        # Of a span of time only bronze is counted.
        if not tables.part.is_span:
            strays.add_batches(batches.strays)
            strays.add_messages(messages.strays)
            strays.add_named(found["quarantine"], first=share.which == 0)
    return RowTotals(
        {run_of(names): arrived for names, arrived in runs.arrived()},
        {(domain, cls): arrived for (domain, cls), arrived in classes.arrived()},
        merged_hours(by_hour),
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
            moment = hour_about(numbers, moments, first)
            if moment is not None:
                yield Hour(domain, cls, moment, lost=last - first + 1)
