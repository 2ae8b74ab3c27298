"""What is claimed of one run: by its ledger records, and by what the next run remembered of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent.contract import Ledger, Previous, Readings
from hub_jobs.tables.ranges import Range, size, union, without


class RunClaims(NamedTuple):
    """Both, None where none came. Between the last ledger record and the last acknowledgement that the next
    run remembered, only the number of the last batch is known."""

    ledger: Ledger | None = None
    previous: Previous | None = None

    @property
    def readings(self) -> Readings:
        """The most that either says: counts only grow."""
        given = [record.readings for record in self if record is not None]
        most = {name: max((getattr(each, name) for each in given), default=0) for name in Readings.__slots__}
        return Readings(**most)

    @property
    def closed(self) -> bool:
        """Whether the run has ended as it should; a killed run never says so."""
        final = self.ledger is not None and self.ledger.final
        return final or (self.previous is not None and self.previous.closed)

    @property
    def stored(self) -> list[Range]:
        """The numbers of batches that are known to have been acknowledged."""
        last = [(self.previous.n, self.previous.n)] if self.previous is not None and self.previous.n else []
        return union(self.ledger.stored if self.ledger else (), last)

    @property
    def refused(self) -> list[Range]:
        """The numbers that were refused."""
        return union((first, last) for first, last, _ in (self.ledger.refused if self.ledger else ()))

    @property
    def discards(self) -> Sequence[tuple[int, int, int, str]]:
        """What the leaf says that it discarded: first and last number, how many readings, and why."""
        return self.ledger.discarded if self.ledger else ()

    @property
    def discarded(self) -> list[Range]:
        """The numbers of these."""
        return union((first, last) for first, last, _, _ in self.discards)

    def never_came(self, came: Sequence[Range]) -> list[Range]:
        """The numbers of batches that were acknowledged as stored, never came, and were not called
        discarded."""
        return without(without(self.stored, union(came)), self.discarded)

    def unheard(self, came: Sequence[Range]) -> list[Range]:
        """The numbers of batches below the highest that came which did not come, and of which no record of
        the run says anything yet."""
        explained = union(self.ledger.stored if self.ledger else (), self.refused, self.discarded)
        highest = max((last for _, last in came), default=0)
        return without(without([(1, highest)], union(came)), explained)

    def unsettled(self, came: Sequence[Range]) -> list[Range]:
        """Batches up to the last number heard of that did not come and that no record explains."""
        last = max((record.n for record in self if record is not None), default=0)
        return without(without([(1, last)], union(came)), union(self.refused, self.discarded))

    def names_all(self, named: Sequence[Range], never_came: int) -> bool:
        """Whether the named batches can be all that is missing: a reading each makes up the sum, or the
        ledger, which has every number, knows of as many stored readings as anybody."""
        complete = self.ledger is not None and self.ledger.readings.stored >= self.readings.stored
        return complete or never_came <= size(named)
