"""Bronze against readings and quarantine. A batch is complete when the places 0 to count - 1 are each there
once, as a reading or as a line in quarantine; count, sum, sum of squares and sum of marks of the places say
so without a list, and a repeat that hides a hole shows too. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hub_jobs.transforms.counted import BATCH, HISTORY, SOURCE, Counted, Mask, marks
from hub_jobs.transforms.ranges import Numbers

Names = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Batches:
    """A batch that is in bronze at each place of the arrays, in the order of their numbers within a run;
    `run` points into `runs`. `missing` and `doubled` are what `look_again` found of those that are `broken`.
    """

    runs: list[Names]
    run: Numbers
    n: Numbers
    count: Numbers
    refined: Mask
    dead: Mask
    moment: Numbers
    late: Mask
    places: Numbers
    in_readings: Numbers
    quarantined: Numbers
    complete: Mask
    missing: Numbers = field(init=False)
    doubled: Numbers = field(init=False)

    def __post_init__(self) -> None:
        # At least this much; who looks at the places knows better.
        short = np.where(self.broken, self.count - self.places, 0)
        even = (self.broken & (short == 0)).astype(np.int64)
        object.__setattr__(self, "missing", np.maximum(short, 0) + even)
        object.__setattr__(self, "doubled", np.maximum(-short, 0) + even)

    @property
    def broken(self) -> Mask:
        """What is refined and not complete."""
        return self.refined & ~self.complete

    @property
    def counts(self) -> dict[str, Numbers]:
        """Readings of each batch by what became of them, as `accounts.Arrived` and `hours.Hour` name it."""
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
    """A place in a source where messages stood that are of no batch, at each place of the arrays; `owner`
    (domain and class) and `source` point into the lists. The counts are of messages."""

    owners: list[Names]
    sources: list[Names]
    owner: Numbers
    source: Numbers
    seq: Numbers
    moment: Numbers
    in_bronze: Numbers
    pending: Numbers
    in_readings: Numbers
    quarantined: Numbers

    @property
    def difference(self) -> Numbers:
        """How many are refined and nowhere; less than zero for those that are there more than once."""
        found: Numbers = self.in_bronze - self.pending - self.in_readings - self.quarantined
        return found

    @property
    def counts(self) -> dict[str, Numbers]:
        """Messages by what became of them."""
        return {
            "in_bronze": self.in_bronze,
            "pending": self.pending,
            "in_readings": self.in_readings,
            "quarantined": self.quarantined,
            "missing": np.maximum(self.difference, 0),
            "doubled": np.maximum(-self.difference, 0),
        }


def batches(bronze: Counted, readings: Counted, quarantine: Counted) -> Batches:
    """Every batch of bronze with what became of it."""
    held = bronze.batches.filter(pc.invert(pa.array(_among(bronze.batches, quarantine.other))))
    parts = [held, readings.batches, quarantine.batches]
    codes, runs = coded(parts, BATCH)
    ids, size, firsts = grouped(codes, [_numbers(one, "n") for one in parts])
    of_held, of_read, of_named = ids
    count, moment = np.zeros(size, np.int64), np.full(size, np.iinfo(np.int64).max)
    there, refined, dead, whole = (np.zeros(size, np.bool_) for _ in range(4))
    late = np.ones(size, np.bool_)
    there[of_held] = True
    np.maximum.at(count, of_held, _numbers(held, "count"))
    np.minimum.at(moment, of_held, _numbers(held, "moment"))
    np.logical_or.at(refined, of_held, _truths(held, "refined"))
    np.logical_or.at(dead, of_held, _truths(held, "dead"))
    np.logical_and.at(late, of_held, _truths(held, "late"))
    np.logical_or.at(whole, of_named, _truths(quarantine.batches, "whole"))
    read, named, *sums = (np.zeros(size, np.int64) for _ in range(5))
    np.add.at(read, of_read, _numbers(readings.batches, "places"))
    np.add.at(named, of_named, _numbers(quarantine.batches, "places"))
    for of, table in ((of_read, readings.batches), (of_named, quarantine.batches)):
        for one, name in zip(sums, ("total", "squares", "marks"), strict=True):
            np.add.at(one, of, _numbers(table, name))
    places = read + named
    complete = np.where(whole, places == 0, _adds_up(count, places, *sums))
    run = np.concatenate(codes)[firsts]
    n = np.concatenate([_numbers(one, "n") for one in parts])[firsts]
    return Batches(
        runs=runs,
        run=run[there],
        n=n[there],
        count=count[there],
        refined=refined[there],
        dead=dead[there],
        moment=moment[there],
        late=late[there],
        places=places[there],
        in_readings=read[there],
        quarantined=np.where(whole, count, named)[there],
        complete=complete[there],
    )


def _adds_up(count: Numbers, places: Numbers, total: Numbers, squares: Numbers, marked: Numbers) -> Mask:
    """Which batches have the places 0 to count - 1 once each."""
    found: Mask = (places == count) & (total * 2 == count * (count - 1))
    found &= squares * 6 == count * (count - 1) * (count * 2 - 1)
    most = int(count[found].max(initial=0))
    due = np.concatenate(([0], np.cumsum(marks(np.arange(most, dtype=np.int64)))))
    found &= marked == due[np.where(found, count, 0)]
    return found


def look_again(found: Batches, at: int, places: Numbers) -> None:
    """Put down what exactly is missing and doubled of a broken batch, whose `places` are these."""
    distinct = np.unique(places).size
    found.missing[at] = max(int(found.count[at]) - distinct, 0)
    found.doubled[at] = places.size - distinct


def messages(bronze: Counted, readings: Counted, quarantine: Counted) -> Messages:
    """Every place of direct messages in bronze with what became of them. What came twice with the same
    content counts once."""
    held = bronze.direct
    (owner,), owners = coded([held], ("domain", "class"))
    (source, of_reading), sources = coded([held, readings.direct], SOURCE)
    seq, content = _numbers(held, "source_seq"), _numbers(held, "content")
    named = _among(held, quarantine.named)
    order = np.lexsort((content, seq, source, owner))
    place = _changes(owner[order], source[order], seq[order])
    message = place | _changes(content[order])
    starts, at_place = np.flatnonzero(message), np.flatnonzero(place)
    if not order.size:
        none = np.array([], np.int64)
        return Messages(owners, sources, *([none] * 8))
    refined = np.logical_or.reduceat(_truths(held, "refined")[order], starts)
    quarantined = np.logical_or.reduceat(named[order], starts)
    by_place = np.searchsorted(starts, at_place)
    sums = [
        np.add.reduceat(one.astype(np.int64), by_place)
        for one in (np.ones(starts.size), refined, quarantined)
    ]
    first = order[at_place]
    stood = _stood(source[first], seq[first], of_reading, _numbers(readings.direct, "source_seq"))
    # A message that no source wrote stands nowhere.
    nowhere = np.array([None in one for one in sources] or [True])[source[first]]
    return Messages(
        owners,
        sources,
        owner[first],
        source[first],
        seq[first],
        np.minimum.reduceat(_numbers(held, "moment")[order], at_place),
        sums[0],
        sums[0] - sums[1],
        np.where(nowhere, 0, stood),
        sums[2],
    )


def coded(tables: Sequence[pa.Table], columns: Sequence[str]) -> tuple[list[Numbers], list[Names]]:
    """A number for every row of each table, the same for the same texts in `columns`, and the texts of each
    number."""
    together = pa.concat_tables([one.select(columns) for one in tables]).unify_dictionaries()
    code = np.zeros(together.num_rows, np.int64)
    texts: list[list[str | None]] = []
    for name in columns:
        column = together[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.array([], together.schema.field(name).type)
        texts.append([None, *column.dictionary.to_pylist()])
        code = code * len(texts[-1]) + pc.fill_null(column.indices, -1).to_numpy() + 1
    distinct, inverse = np.unique(code, return_inverse=True)
    names: list[Names] = []
    for one in distinct.tolist():
        parts: list[str | None] = []
        for known in reversed(texts):
            one, at = divmod(one, len(known))
            parts.insert(0, known[at])
        names.append(tuple(parts))
    ends = np.cumsum([one.num_rows for one in tables])[:-1]
    return np.split(inverse.astype(np.int64), ends), names


def grouped(codes: Sequence[Numbers], numbers: Sequence[Numbers]) -> tuple[list[Numbers], int, Numbers]:
    """A group for each pair of code and number, counted in their order: that of each row, how many there are,
    and a row of each."""
    code, number = np.concatenate(codes), np.concatenate(numbers)
    order = np.lexsort((number, code))
    new = _changes(code[order], number[order])
    ids = np.empty(order.size, np.int64)
    ids[order] = np.cumsum(new) - 1
    ends = np.cumsum([one.size for one in codes])[:-1]
    return np.split(ids, ends), int(new.sum()), order[new]


def summed(ids: Numbers, size: int, values: Numbers | Mask) -> list[int]:
    """The sum of the values of each group."""
    found = np.zeros(size, np.int64)
    np.add.at(found, ids, values.astype(np.int64))
    return found.tolist()


def _changes(*columns: Numbers) -> Mask:
    """Which rows differ from the one before; the first does."""
    found = np.zeros(columns[0].size, np.bool_)
    found[:1] = True
    for one in columns:
        found[1:] |= one[1:] != one[:-1]
    return found


def _stood(source: Numbers, seq: Numbers, of_reading: Numbers, numbers: Numbers) -> Numbers:
    """How many readings stand at each of some places; `source` and `seq` are each pair once."""
    ids, size, _ = grouped([source, of_reading], [seq, numbers])
    counts = np.bincount(ids[1], minlength=size)
    found: Numbers = counts[ids[0]].astype(np.int64)
    return found


def _among(rows: pa.Table, given: pa.Table) -> Mask:
    """Which rows are messages that are given, by stream, incarnation and sequence."""
    codes, _ = coded([rows, given], HISTORY)
    ids, size, _ = grouped(codes, [_numbers(rows, "seq"), _numbers(given, "seq")])
    wanted = np.zeros(size, np.bool_)
    wanted[ids[1]] = True
    return wanted[ids[0]]


def _numbers(table: pa.Table, name: str) -> Numbers:
    found: Numbers = table[name].to_numpy()
    return found


def _truths(table: pa.Table, name: str) -> Mask:
    found: Mask = table[name].to_numpy()
    return found
