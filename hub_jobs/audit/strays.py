"""Rows of readings and quarantine whose message is not in bronze, so that nothing there explains them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hub_jobs.audit import reconcile
from hub_jobs.audit.accounts import Unbacked
from hub_jobs.audit.count_rows import Counted
from hub_jobs.audit.grouping import Names, coded
from hub_jobs.audit.held import BronzeContents
from hub_jobs.audit.ledgers import Run
from hub_jobs.tables.dedup_keys import hub_space
from hub_jobs.tables.ranges import Numbers, Range, contains, runs_of, text, union


class Rows(NamedTuple):
    """Rows of batches of a run: of each number how many are in readings, and in quarantine."""

    n: Numbers
    readings: Numbers
    quarantined: Numbers

    def of(self, numbers: list[Range]) -> tuple[Unbacked, Unbacked]:
        """Those of batches with these numbers, and the others."""
        mine = contains(numbers, self.n)
        return self._unbacked(mine), self._unbacked(~mine)

    def _unbacked(self, mask: np.typing.NDArray[np.bool_]) -> Unbacked:
        readings, quarantined = self.readings[mask], self.quarantined[mask]
        return Unbacked(runs_of(self.n[mask]), int(readings.sum()), int(quarantined.sum()))


class _Place:
    """Rows at places of one source or stream."""

    def __init__(self) -> None:
        self.rows = 0
        self.ranges: list[Range] = []

    def add(self, numbers: Numbers, rows: int) -> None:
        self.ranges = union(self.ranges, runs_of(numbers))
        self.rows += rows


class StrayScan:
    """Gathers them, share by share. `runs` are those of batches."""

    def __init__(self, held: BronzeContents) -> None:
        self._held = held
        self.runs: dict[Run, Rows] = {}
        self._messages: dict[Names, _Place] = {}
        self._named: dict[Names, _Place] = {}

    def add_batches(self, found: reconcile.UnexplainedRows) -> None:
        """Take in rows of batches."""
        for code in np.unique(found.owner).tolist():
            mine = found.owner == code
            rows = Rows(found.number[mine], found.readings[mine], found.quarantined[mine])
            run = run_of(found.owners[code])
            known = self.runs.get(run)
            both = rows if known is None else Rows(*map(np.concatenate, zip(known, rows, strict=True)))
            self.runs[run] = both

    def add_messages(self, found: reconcile.UnexplainedRows) -> None:
        """Take in readings that are of no batch."""
        for code in np.unique(found.owner).tolist():
            mine = found.owner == code
            place = self._messages.setdefault(found.owners[code], _Place())
            place.add(found.number[mine], int(found.readings[mine].sum()))

    def add_named(self, quarantine: Counted, *, first: bool) -> None:
        """Take in messages that quarantine names beside batches; they are in every share."""
        for table in (quarantine.named, quarantine.other) if first else ():
            (codes,), names = coded([table], ("stream", "created"))
            seqs = table["seq"].to_numpy()
            for code, name in enumerate(names):
                known = self._held.here.ranges(hub_space(str(name[0]), str(name[1])))
                mine = seqs[codes == code]
                if (stray := mine[~contains(known, mine)]).size:
                    self._named.setdefault(name, _Place()).add(stray, int(stray.size))

    def sentences(self) -> list[str]:
        """About those that are of no run."""
        return [
            *(_of_source(names, place) for names, place in sorted(self._messages.items(), key=str)),
            *(
                f"{place.rows} rows of quarantine are of sequences {text(place.ranges)} of {stream} "
                f"({created}), which bronze does not have"
                for (stream, created), place in sorted(self._named.items(), key=str)
            ),
        ]


def run_of(names: Names) -> Run:
    """The names of a run."""
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
