"""Holds the records of an account: an agent's claims of one run, the arrived batches, and their comparison.

An agent promises readings that it acknowledged as stored. A killed run never reports its end. Readings that
it had only accepted in memory were not promised: they are an open tail and no loss. Its size may be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agent.contract import Ledger, Previous, Readings
from agent.contract.ranges import Range, size, union, without


class RunClaims(NamedTuple):
    """Claims about one run: its newest ledger record, and the next run's memory of it; None when missing."""

    ledger: Ledger | None = None
    previous: Previous | None = None

    @property
    def readings(self) -> Readings:
        """The maximum of both claims; counts only grow."""
        given = [record.readings for record in self if record is not None]
        most = {name: max((getattr(each, name) for each in given), default=0) for name in Readings.__slots__}
        return Readings(**most)

    @property
    def closed(self) -> bool:
        """Whether the run ended in order; False for a killed run."""
        final = self.ledger is not None and self.ledger.final
        return final or (self.previous is not None and self.previous.closed)

    @property
    def stored(self) -> list[Range]:
        """The batch numbers known as acknowledged."""
        last = [(self.previous.n, self.previous.n)] if self.previous is not None and self.previous.n else []
        return union(self.ledger.stored if self.ledger else (), last)

    @property
    def refused(self) -> list[Range]:
        """The refused batch numbers."""
        return union((first, last) for first, last, _ in (self.ledger.refused if self.ledger else ()))

    @property
    def discards(self) -> Sequence[tuple[int, int, int, str]]:
        """The leaf's discards: first and last number, readings, reason."""
        return self.ledger.discarded if self.ledger else ()

    @property
    def discarded(self) -> list[Range]:
        """The discarded batch numbers."""
        return union((first, last) for first, last, _, _ in self.discards)

    def never_came(self, came: Sequence[Range]) -> list[Range]:
        """Return batch numbers acknowledged as stored that neither arrived nor were discarded."""
        return without(without(self.stored, union(came)), self.discarded)

    def unheard(self, came: Sequence[Range]) -> list[Range]:
        """Return batch numbers below the highest arrived that did not arrive and have no record yet."""
        explained = union(self.ledger.stored if self.ledger else (), self.refused, self.discarded)
        highest = max((last for _, last in came), default=0)
        return without(without([(1, highest)], union(came)), explained)

    def unsettled(self, came: Sequence[Range]) -> list[Range]:
        """Return unexplained batch numbers up to the last known that did not arrive."""
        last = max((record.n for record in self if record is not None), default=0)
        return without(without([(1, last)], union(came)), union(self.refused, self.discarded))

    def names_all(self, named: Sequence[Range], never_came: int) -> bool:
        """Tell whether `named` can be the complete list of missing batches.

        Either the sum matches one reading each, or the complete ledger knows as many stored readings as any
        other source.
        """
        complete = self.ledger is not None and self.ledger.readings.stored >= self.readings.stored
        return complete or never_came <= size(named)


@dataclass(frozen=True, slots=True)
class Unbacked:
    """Rows of readings and quarantine without message in bronze, and their batch numbers."""

    batches: Sequence[Range] = ()
    readings: int = 0
    quarantined: int = 0

    @property
    def rows(self) -> int:
        return self.readings + self.quarantined


NOTHING: Final = Unbacked()


@dataclass(frozen=True, slots=True)
class Arrived:
    """The contents of the tables for a run, in readings."""

    batches: Sequence[Range] = ()
    """Batch numbers in bronze."""
    in_bronze: int = 0
    pending: int = 0
    """In bronze, not yet refined."""
    in_readings: int = 0
    quarantined: int = 0
    missing: int = 0
    """Refined, but in neither readings nor quarantine."""
    doubled: int = 0
    findings: tuple[str, ...] = ()
    """Sentences about missing and doubled readings."""
    kept: int = 0
    """Arrived although the leaf reported a discard."""
    dead: int = 0
    """Dead letters, in bronze and quarantine; in no other field."""
    gone: Sequence[Range] = ()
    """Batches that bronze held earlier."""
    kept_rows: Unbacked = NOTHING
    """Rows of batches that are not in bronze but were, or are known as stored."""
    invented: Unbacked = NOTHING
    """Rows of batches that nothing else knows."""
    partly: bool = False
    """Whether files of bronze are unreadable."""


@dataclass(frozen=True, slots=True)
class Account:
    """A row of the table `audit`."""

    domain: str | None
    cls: str | None
    run: str | None
    accepted: int
    stored: int
    in_bronze: int
    pending: int
    in_readings: int
    quarantined: int
    missing: int
    doubled: int
    discarded: int
    refused: int
    open_tail: int | None
    findings: list[str] = field(default_factory=list)
    dead: int = 0
    on_the_way: int | None = None
    unexplained: int = 0

    @property
    def lost(self) -> bool:
        """Whether anything is unexplained, doubled or lost without a reason."""
        return self.missing > 0 or self.doubled > 0 or self.unexplained > 0
