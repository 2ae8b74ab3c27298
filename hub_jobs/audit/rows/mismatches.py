"""Finds rows on which bronze and other tables disagree."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final, NamedTuple

import numpy as np

from agent.contract.ranges import Range, text, union, without
from hub_jobs.audit.account import Unbacked
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.ledgers import Run
from hub_jobs.audit.rows import lookups, reconcile
from hub_jobs.audit.rows.count_rows import RowCounts
from hub_jobs.audit.rows.lookups import Key
from hub_jobs.audit.rows.reconcile import BatchRows, Messages
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.tables.grouping import Names, by_code, coded
from hub_jobs.tables.ranges import Mask, Numbers, contains, runs_of
from hub_jobs.tables.spaces import HISTORY, hub_space

LISTED: Final = 1_000
"""Batches listed one by one; sums count all."""

Findings = MutableMapping[tuple[str | None, ...], list[str]]


class BrokenBatches:
    """Lists incomplete and doubled batches in `findings` by run. Only counts rows that unreadable files may
    hold.
    """

    def __init__(self, tables: AuditTables, findings: Findings) -> None:
        self._tables, self._findings = tables, findings
        self.explained: dict[tuple[str | None, ...], list[str]] = {}
        """Sentences about old batches without missing or doubled readings."""
        self._left = self._aside = self._aside_readings = self._aside_messages = 0

    def name(self, found: BatchRows) -> None:
        """Examine a share's incomplete batches and those whose copies disagree."""
        aside = self._in_unreadable(found) & (found.missing > 0)
        self._aside += int(np.count_nonzero(aside))
        self._aside_readings += int(found.missing[aside].sum())
        wrong = np.flatnonzero((found.broken & ~aside) | (found.least != found.count))
        room = max(LISTED - sum(map(len, self._findings.values())), 0)
        self._left += max(int(wrong.size) - room, 0)
        keys: list[Key] = [
            (run_of(found.runs[found.run[at]]), int(found.n[at])) for at in wrong[:room].tolist()
        ]
        if not keys:
            return
        places, lines = lookups.places(self._tables, keys), lookups.lines(self._tables, keys)
        for at, key in zip(wrong.tolist(), keys, strict=False):
            held = np.sort(np.array(places[key], dtype=np.int64))
            self._judge(found, at, key, held, lines.get(key, set()))

    def put_aside(self, found: Messages) -> Mask:
        """Tell which missing direct messages may be in unreadable files."""
        mask = np.zeros(found.seq.size, np.bool_)
        for file in self._tables.unreadable:
            if file.table != "bronze":
                mine = np.array([file.may_hold(domain=owner[0]) for owner in found.owners] or [False])
                first, last = file.moments()
                mask |= mine[found.owner] & (found.moment >= first) & (found.moment <= last)
        mask &= found.difference > 0
        self._aside_messages += int(np.count_nonzero(mask))
        return mask

    def sentences(self) -> list[str]:
        """Return sentences about unlisted batches."""
        sentences = []
        if self._aside_messages:
            sentences.append(
                f"{self._aside_messages} messages of devices that are missing may be in files that can't be "
                "read; they are not named one by one"
            )
        if self._aside:
            sentences.append(
                f"{self._aside} batches, of which {self._aside_readings} readings are missing, may have them "
                "in files that can't be read; they are not named one by one"
            )
        if self._left:
            sentences.append(
                f"{self._left} more batches are not complete; of them at least what missing and doubled "
                "count is so"
            )
        return sentences

    def _judge(self, found: BatchRows, at: int, key: Key, held: Numbers, lines: set[int]) -> None:
        """Count a batch by its payload; anyone with the agent's key can write headers."""
        least, most = int(found.least[at]), int(found.count[at])
        possible = lines or {least, most}
        count = int(held.size) if held.size in possible else max(possible)
        findings = self._findings.setdefault(found.runs[found.run[at]], [])
        count_again(found, at, count)
        if found.broken[at]:
            look_again(found, at, held)
        if {least, most} != {count}:
            given = f"{most}" if least == most else f"{least}, and in another copy {most}"
            payload = f"its payload holds {count}" if lines else "its payload was dropped"
            findings.append(f"{_name(key)}: bronze says that it holds {given} readings; {payload}")
            if found.old[at]:
                self.explained.setdefault(found.runs[found.run[at]], []).append(findings[-1])
        if found.missing[at] or found.doubled[at]:
            whole = bool(found.whole[at])
            findings.append(f"{_name(key)}: {_whole(found, at) if whole else _places(count, held)}")

    def _in_unreadable(self, found: BatchRows) -> Mask:
        mask = np.zeros(found.n.size, np.bool_)
        for file in self._tables.unreadable:
            if file.table == "bronze" or "n" not in file.bounds:
                continue
            runs = np.array([file.may_hold(domain=run[0], run=run[2]) for run in found.runs] or [False])
            first, last = file.bounds["n"]
            mask |= runs[found.run] & (found.n >= first) & (found.n <= last)
        return mask


def count_again(found: BatchRows, at: int, count: int) -> None:
    """Set the true number of readings in a batch."""
    found.count[at] = count
    if found.whole[at]:
        found.quarantined[at] = count


def look_again(found: BatchRows, at: int, places: Numbers) -> None:
    """Set the missing and doubled readings of a broken batch from its `places`."""
    count = int(found.count[at])
    if found.whole[at]:
        found.missing[at] = 0
        found.doubled[at] = count * (found.whole[at] - 1) + places.size
        return
    within = np.unique(places[(places >= 0) & (places < count)]).size
    found.missing[at] = count - within
    found.doubled[at] = places.size - within


def _name(key: Key) -> str:
    (domain, cls, run), n = key
    return f"{domain}, class {cls}, run {run}, batch {n}"


def _whole(found: BatchRows, at: int) -> str:
    more = found.whole[at] - 1
    parts = [f"{more} times more than once"] if more else []
    if found.places[at]:
        parts.append(f"and {found.places[at]} of its readings or lines are there beside it")
    return f"is in quarantine as a whole, {', '.join(parts)}"


def _places(count: int, places: Numbers) -> str:
    lacking = without([(0, count - 1)], runs_of(places)) if count else []
    repeated = runs_of(places[1:][places[1:] == places[:-1]])
    beyond = runs_of(places[(places < 0) | (places >= count)])
    parts = [f"indexes {text(lacking)} of {count} are missing from readings"] if lacking else []
    if repeated:
        parts.append(f"indexes {text(repeated)} are in readings more than once")
    if beyond:
        parts.append(f"indexes {text(beyond)} are in readings and it has {count} only")
    return "; ".join(parts) or "more readings than it has"


class StrayRows(NamedTuple):
    """Stray rows of a run's batches per number, in readings and in quarantine."""

    n: Numbers
    readings: Numbers
    quarantined: Numbers

    def of(self, numbers: list[Range]) -> tuple[Unbacked, Unbacked]:
        """Split into batches with these numbers and the rest."""
        mine = contains(numbers, self.n)
        return self._unbacked(mine), self._unbacked(~mine)

    def _unbacked(self, mask: np.typing.NDArray[np.bool_]) -> Unbacked:
        readings, quarantined = self.readings[mask], self.quarantined[mask]
        return Unbacked(runs_of(self.n[mask]), int(readings.sum()), int(quarantined.sum()))


class _Place:
    def __init__(self) -> None:
        self.rows = 0
        self.ranges: list[Range] = []

    def add(self, numbers: Numbers, rows: int) -> None:
        self.ranges = union(self.ranges, runs_of(numbers))
        self.rows += rows


class StrayScan:
    """Gathers rows whose message is not in bronze, share by share; `runs` has those of batches."""

    def __init__(self, held: BronzeContents) -> None:
        self._held = held
        self.runs: dict[Run, StrayRows] = {}
        self._messages: dict[Names, _Place] = {}
        self._named: dict[Names, _Place] = {}

    def add_batches(self, found: reconcile.UnexplainedRows) -> None:
        for code in np.unique(found.owner).tolist():
            mine = found.owner == code
            rows = StrayRows(found.number[mine], found.readings[mine], found.quarantined[mine])
            run = run_of(found.owners[code])
            known = self.runs.get(run)
            both = rows if known is None else StrayRows(*map(np.concatenate, zip(known, rows, strict=True)))
            self.runs[run] = both

    def add_messages(self, found: reconcile.UnexplainedRows) -> None:
        """Add readings without batch."""
        for code in np.unique(found.owner).tolist():
            mine = found.owner == code
            place = self._messages.setdefault(found.owners[code], _Place())
            place.add(found.number[mine], int(found.readings[mine].sum()))

    def add_named(self, quarantine: RowCounts, *, first: bool) -> None:
        """Add quarantined messages without batch, which every share repeats."""
        for table in (quarantine.named, quarantine.other) if first else ():
            (codes,), names = coded([table], HISTORY)
            for name, mine in zip(names, by_code(codes, table["seq"].to_numpy(), len(names)), strict=True):
                known = self._held.here.ranges(hub_space(str(name[0]), str(name[1])))
                if (stray := mine[~contains(known, mine)]).size:
                    self._named.setdefault(name, _Place()).add(stray, int(stray.size))

    def sentences(self) -> list[str]:
        """Report rows without run."""
        return [
            *(_of_source(names, place) for names, place in sorted(self._messages.items(), key=str)),
            *(
                f"{place.rows} rows of quarantine are of sequences {text(place.ranges)} of {stream} "
                f"({created}), which bronze does not have"
                for (stream, created), place in sorted(self._named.items(), key=str)
            ),
        ]


def run_of(names: Names) -> Run:
    domain, cls, run = map(str, names)
    return domain, cls, run


def _of_source(names: Names, place: _Place) -> str:
    stream, identity = names
    if stream is None or identity is None:
        return f"{place.rows} readings are of no batch and of no message"
    return (
        f"{place.rows} readings are said to be the messages {text(place.ranges)} of {stream} ({identity}), "
        "and bronze has no message of a device there"
    )
