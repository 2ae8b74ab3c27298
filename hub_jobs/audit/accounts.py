"""Makes the account of one run: its agent's claims against arrived data. Pure.

An agent promises the readings that it acknowledged as stored. A killed run reports no end; readings accepted
only in memory are its open tail and no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from agent.contract import Doubt, Ledger, Previous, Readings
from agent.contract.ranges import Range, size, text, union, without
from hub_jobs.audit.findings import discarded_of, findings_of, unbacked


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


def of_run(domain: str, cls: str, run: str, claims: RunClaims, arrived: Arrived) -> Account:
    """Return the account of a run from claims and arrived data."""
    claimed, ledger = claims.readings, claims.ledger
    known = union(arrived.batches)
    promised = union(claims.never_came(known), arrived.gone)
    absent = without(promised, union(arrived.kept_rows.batches))
    # Only what is named is explained.
    discarded = max(sum(readings for _, _, readings, _ in claims.discards) - arrived.kept, 0)
    short = claimed.stored - arrived.in_bronze - arrived.kept_rows.rows - discarded
    # Of a batch that never came only a bound is known: it held a reading at least.
    never_came = max(short, size(absent), 0)
    # The last record of a run knows each number that it gave out.
    beyond = without(known, [(1, ledger.n)]) if ledger is not None and ledger.final else []
    account = Account(
        domain=domain,
        cls=cls,
        run=run,
        accepted=max(claimed.accepted, arrived.in_bronze + arrived.dead),
        stored=max(claimed.stored, arrived.in_bronze),
        in_bronze=arrived.in_bronze,
        pending=arrived.pending,
        in_readings=arrived.in_readings + arrived.kept_rows.readings,
        quarantined=arrived.quarantined + arrived.kept_rows.quarantined,
        missing=arrived.missing + never_came,
        doubled=arrived.doubled,
        discarded=discarded,
        refused=claimed.refused,
        open_tail=None if claims.closed else _tail(claimed, arrived),
        findings=list(arrived.findings),
        dead=max(claimed.dead, arrived.dead),
        unexplained=arrived.kept_rows.rows + arrived.invented.rows + size(beyond),
    )
    name = f"{domain}, class {cls}, run {run}"
    findings = list(unbacked(name, arrived))
    if ledger is not None and beyond:
        findings.append(
            f"{name}: batches {text(beyond)} are in bronze, and its agent gave out no number above {ledger.n}"
        )
    findings += findings_of(account, claims, absent, never_came, arrived)
    return replace(account, findings=account.findings + findings)


def with_doubts(account: Account, doubts: Sequence[Doubt]) -> Account:
    """Return an account with a sentence per doubt of its leaf about input lines."""
    name = f"{account.domain}, class {account.cls}, run {account.run}"
    return replace(account, findings=[*account.findings, *(f"{name}: {doubt}" for doubt in doubts)])


def with_announced(
    account: Account, claimed: Readings | None, *, flows: bool, unheard: bool = False
) -> Account:
    """Return an account with the leaf's last announcement, `claimed` (None for an earlier run).

    `flows` tells whether messages of the leaf's stream are still in transit. With `unheard` batches that no
    link will deliver, the rest in transit is unknown.
    """
    if claimed is None or not flows:
        return replace(account, on_the_way=None if flows else 0)
    settled = account.in_bronze + account.discarded + account.missing
    stored = max(account.stored, claimed.stored)
    accepted = max(account.accepted, claimed.accepted)
    tail = account.open_tail
    if tail is not None:
        refused, dead = max(account.refused, claimed.refused), max(account.dead, claimed.dead)
        tail = max(accepted - stored - refused - dead, 0)
    return replace(
        account,
        accepted=accepted,
        stored=stored,
        open_tail=tail,
        on_the_way=None if unheard else max(stored - settled, 0),
    )


def of_direct(
    domain: str | None,
    cls: str | None,
    arrived: Arrived,
    discarded: Sequence[tuple[int, int, int, str]] = (),
) -> Account:
    """Return the account of messages without run.

    `discarded` has the leaf stream's discarded sequences with direct messages; `arrived.kept` of them
    arrived.
    """
    lost = max(sum(messages for _, _, messages, _ in discarded) - arrived.kept, 0)
    return Account(
        domain=domain,
        cls=cls,
        run=None,
        accepted=arrived.in_bronze + lost,
        stored=arrived.in_bronze + lost,
        in_bronze=arrived.in_bronze,
        pending=arrived.pending,
        in_readings=arrived.in_readings,
        quarantined=arrived.quarantined,
        missing=arrived.missing,
        doubled=arrived.doubled,
        discarded=lost,
        refused=0,
        open_tail=None,
        findings=[*arrived.findings, *discarded_of(f"{domain}, class {cls}", arrived.kept, discarded)],
    )


def _tail(claimed: Readings, arrived: Arrived) -> int:
    settled = max(claimed.stored, arrived.in_bronze) + claimed.refused
    settled += max(claimed.dead, arrived.dead)
    return max(claimed.accepted - settled, 0)
