"""Compares bronze with readings and quarantine. Pure.

A batch is complete when each place 0 to count - 1 is once in readings or quarantine. Count, sum, sum of
squares and sum of marks prove that without a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hub_jobs.audit.rows.count_rows import RowCounts
from hub_jobs.audit.rows.place_sums import add_up
from hub_jobs.tables.grouping import Names, changes, coded, grouped
from hub_jobs.tables.ranges import Mask, Numbers
from hub_jobs.tables.spaces import BATCH, HISTORY, SOURCE


class UnexplainedRows(NamedTuple):
    """Rows whose message is not in bronze or not yet refined.

    An array item is a batch or a source place; `owner` indexes its run or source in `owners`.
    """

    owners: list[Names]
    owner: Numbers
    number: Numbers
    """Batch number or source sequence."""
    readings: Numbers
    quarantined: Numbers


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The batches of bronze, one array item each, sorted by number within a run."""

    runs: list[Names]
    run: Numbers
    """Index into `runs`."""
    n: Numbers
    count: Numbers
    """Largest reading count of any copy."""
    least: Numbers
    """Smallest reading count of any copy."""
    refined: Mask
    dead: Mask
    moment: Numbers
    late: Mask
    arrived: Numbers
    places: Numbers
    in_readings: Numbers
    quarantined: Numbers
    whole: Numbers
    """Times that the batch is quarantined whole."""
    complete: Mask
    strays: UnexplainedRows
    old: Mask
    """Whether bronze has an old row."""
    apart: Mask
    """Whether old and new rows of other tables are mixed."""
    missing: Numbers = field(init=False)
    """A lower bound for broken batches until `mismatches.look_again`."""
    doubled: Numbers = field(init=False)

    def __post_init__(self) -> None:
        there = self.places + self.whole * self.count
        short = np.where(self.broken, self.count - there, 0)
        even = (self.broken & (short == 0)).astype(np.int64)
        object.__setattr__(self, "missing", np.maximum(short, 0) + even)
        object.__setattr__(self, "doubled", np.maximum(-short, 0) + even)

    @property
    def broken(self) -> Mask:
        """Refined but incomplete batches."""
        return self.refined & ~self.complete

    @property
    def waiting(self) -> Mask:
        """Partly old batches that can't be settled."""
        in_order = self.refined & (self.missing == 0) & (self.doubled == 0)
        found: Mask = self.apart | (self.old & ~in_order)
        return found

    @property
    def counts(self) -> dict[str, Numbers]:
        """Return readings per batch and outcome, named as in `accounts.Arrived` and `totals.Hour`."""
        alive = ~self.dead
        return {
            "in_bronze": self.count * alive,
            "pending": self.count * (alive & ~self.refined),
            "in_readings": self.in_readings,
            "quarantined": self.quarantined * alive,
            "dead": self.count * self.dead,
            "missing": self.missing,
            "doubled": self.doubled,
        }


@dataclass(frozen=True, slots=True)
class Messages:
    """Source places of direct messages, one array item each; `owner` and `source` are indexes. Counts
    messages.
    """

    owners: list[Names]
    """Domains and classes."""
    sources: list[Names]
    owner: Numbers
    source: Numbers
    seq: Numbers
    moment: Numbers
    in_bronze: Numbers
    pending: Numbers
    in_readings: Numbers
    quarantined: Numbers
    aged: Numbers
    """Messages in bronze that may have expired elsewhere."""
    old: tuple[Numbers, Numbers, Numbers]
    """Old messages in bronze, readings and quarantine."""
    strays: UnexplainedRows

    @property
    def waiting(self) -> Mask:
        """Partly old places that can't be settled."""
        in_bronze, in_readings, quarantined = self.old
        found: Mask = self._beyond_age(in_bronze - in_readings - quarantined) != 0
        found |= (in_bronze > 0) & ((self.difference != 0) | (self.pending > 0))
        return found

    @property
    def old_counts(self) -> dict[str, Numbers]:
        """Return old messages by outcome."""
        return dict(zip(("in_bronze", "in_readings", "quarantined"), self.old, strict=True))

    @property
    def difference(self) -> Numbers:
        """Missing refined messages; negative for doubled ones."""
        return self._beyond_age(self.in_bronze - self.pending - self.in_readings - self.quarantined)

    def _beyond_age(self, difference: Numbers) -> Numbers:
        """Return the difference that expiry does not explain."""
        doubled = np.where(self.aged < self.in_bronze, np.minimum(difference, 0), 0)
        found: Numbers = np.maximum(difference - self.aged, 0) + doubled
        return found

    @property
    def counts(self) -> dict[str, Numbers]:
        """Return messages by outcome."""
        return {
            "in_bronze": self.in_bronze,
            "pending": self.pending,
            "in_readings": self.in_readings,
            "quarantined": self.quarantined,
            "missing": np.maximum(self.difference, 0),
            "doubled": np.maximum(-self.difference, 0),
        }


def batches(bronze: RowCounts, readings: RowCounts, quarantine: RowCounts, kept_since: int = 0) -> BatchRows:
    """Return every batch of bronze with its outcome. Rows that arrived before `kept_since` may
    have expired.
    """
    held = bronze.batches.filter(pa.array(_times(bronze.batches, quarantine.other) == 0))
    parts = [held, readings.batches, quarantine.batches]
    codes, runs = coded(parts, BATCH)
    ids, size, firsts = grouped(codes, [_column(part, "n") for part in parts])
    of_held, of_read, of_named = ids
    count = np.zeros(size, np.int64)
    least, moment, arrived = (np.full(size, np.iinfo(np.int64).max) for _ in range(3))
    there, refined, dead, old = (np.zeros(size, np.bool_) for _ in range(4))
    late = np.ones(size, np.bool_)
    there[of_held] = True
    np.maximum.at(count, of_held, _column(held, "count"))
    for lowest, name in ((least, "count"), (moment, "moment"), (arrived, "arrived")):
        np.minimum.at(lowest, of_held, _column(held, name))
    for any_copy, name in ((refined, "refined"), (old, "old"), (dead, "dead")):
        np.logical_or.at(any_copy, of_held, _column(held, name))
    np.logical_and.at(late, of_held, _column(held, "late"))
    whole, read, named, old_rows, *sums = (np.zeros(size, np.int64) for _ in range(7))
    np.add.at(whole, of_named, _column(quarantine.batches, "whole"))
    np.add.at(read, of_read, _column(readings.batches, "places"))
    np.add.at(named, of_named, _column(quarantine.batches, "places"))
    for of, table in ((of_read, readings.batches), (of_named, quarantine.batches)):
        rows = _column(table, "places") + _column(table, "whole")
        np.add.at(old_rows, of, np.where(_column(table, "old"), rows, 0))
        for sum_, name in zip(sums, ("total", "squares", "marks"), strict=True):
            np.add.at(sum_, of, _column(table, name))
    places = read + named
    aged = arrived < kept_since
    apart = np.where(old, places + whole, 0) != old_rows
    complete = aged | np.where(whole > 0, (places == 0) & (whole == 1), add_up(count, places, *sums))
    run = np.concatenate(codes)[firsts]
    n = np.concatenate([_column(part, "n") for part in parts])[firsts]
    stray = ~(there & refined) & (places + whole > 0)
    return BatchRows(
        runs=runs,
        run=run[there],
        n=n[there],
        count=count[there],
        least=least[there],
        refined=refined[there],
        dead=dead[there],
        moment=moment[there],
        late=late[there],
        arrived=arrived[there],
        places=places[there],
        in_readings=read[there],
        quarantined=np.where(whole > 0, count, named)[there],
        whole=whole[there],
        complete=complete[there],
        strays=UnexplainedRows(runs, run[stray], n[stray], read[stray], (named + whole)[stray]),
        old=old[there],
        apart=apart[there],
    )


def messages(bronze: RowCounts, readings: RowCounts, quarantine: RowCounts, kept_since: int = 0) -> Messages:
    """Return every place of direct messages with its outcome; equal copies count once. `kept_since` as in
    `batches`.
    """
    held = bronze.direct
    (owner,), owners = coded([held], BATCH[:2])
    (source, of_reading), sources = coded([held, readings.direct], SOURCE)
    seq, content = _column(held, "source_seq"), _column(held, "content")
    read = _column(readings.direct, "source_seq")
    nowhere = np.array([None in names for names in sources] or [True])
    strays = _strays(sources, nowhere, (source, seq), (of_reading, read))
    named = _times(held, quarantine.named)
    order = np.lexsort((content, seq, source, owner))
    place = changes(owner[order], source[order], seq[order])
    message = place | changes(content[order])
    starts, at_place = np.flatnonzero(message), np.flatnonzero(place)
    old = _column(held, "old")
    refined, is_old = (
        np.logical_or.reduceat(mask[order], starts) for mask in (_column(held, "refined"), old)
    )
    moments = np.minimum.reduceat(_column(held, "moment")[order], starts)
    # Of messages that no source wrote none is known to be a repeat of another.
    quarantined, old_quarantined = (
        np.where(
            nowhere[source[order[starts]]],
            np.maximum.reduceat(counts[order], starts),
            np.add.reduceat(counts[order], starts),
        )
        for counts in (named, np.where(old, named, 0))
    )
    by_place = np.searchsorted(starts, at_place)
    aged = (moments < kept_since) & (quarantined == 0)
    sums = [
        np.add.reduceat(counts.astype(np.int64), by_place)
        for counts in (np.ones(starts.size), refined, quarantined, is_old, old_quarantined, aged)
    ]
    first = order[at_place]
    old_read = _column(readings.direct, "old")
    stood, old_stood = (
        np.where(nowhere[source[first]], 0, _occurrences(source[first], seq[first], codes, numbers))
        for codes, numbers in ((of_reading, read), (of_reading[old_read], read[old_read]))
    )
    moment = np.minimum.reduceat(moments, by_place)
    names = owners, sources, owner[first], source[first], seq[first]
    counts = sums[0], sums[0] - sums[1], stood, sums[2], sums[5]
    return Messages(*names, moment, *counts, (sums[3], old_stood, sums[4]), strays)


def _strays(
    sources: list[Names], nowhere: Mask, held: tuple[Numbers, Numbers], read: tuple[Numbers, Numbers]
) -> UnexplainedRows:
    (of_held, of_read), size, firsts = grouped([held[0], read[0]], [held[1], read[1]])
    counts = np.bincount(of_read, minlength=size)
    source, seq = np.concatenate([held[0], read[0]])[firsts], np.concatenate([held[1], read[1]])[firsts]
    there = np.zeros(size, np.bool_)
    there[of_held] = True
    # A message that no source wrote stands nowhere, and is not a reading.
    stray = (counts > 0) & ~(there & ~nowhere[source])
    found = counts[stray].astype(np.int64)
    return UnexplainedRows(sources, source[stray], seq[stray], found, np.zeros_like(found))


def _times(rows: pa.Table, given: pa.Table) -> Numbers:
    (of_rows, of_given), _ = coded([rows, given], HISTORY)
    return _occurrences(of_rows, _column(rows, "seq"), of_given, _column(given, "seq"))


def _occurrences(codes: Numbers, numbers: Numbers, of_others: Numbers, others: Numbers) -> Numbers:
    (ids, other_ids), size, _ = grouped([codes, of_others], [numbers, others])
    found: Numbers = np.bincount(other_ids, minlength=size)[ids].astype(np.int64)
    return found


def _column(table: pa.Table, name: str) -> Any:
    return table[name].to_numpy()
