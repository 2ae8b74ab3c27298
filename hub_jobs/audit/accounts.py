"""The account of one run: what its agent said against what arrived. Pure.

Its agent promised what it acknowledged as stored. A run that was killed never says how it ended; what it
had only accepted in memory was not promised and is an open tail, with its size as far as it is known, but
no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from agent.contract import Doubt, Ledger, Previous, Readings
from agent.contract.ranges import Range, size, text, union, without
from hub_jobs.audit.findings import discarded_of, findings_of, unbacked


class RunClaims(NamedTuple):
    """What is claimed of one run: by its newest ledger record, and by what the next run remembered of it;
    None where none came. Between the two only the number of the last batch is known."""

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


@dataclass(frozen=True, slots=True)
class Unbacked:
    """Rows of readings and quarantine whose messages are not in bronze, and the numbers of their batches."""

    batches: Sequence[Range] = ()
    readings: int = 0
    quarantined: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.readings + self.quarantined


NOTHING: Final = Unbacked()


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the tables hold of a run, in readings."""

    batches: Sequence[Range] = ()
    """The numbers of its batches in bronze."""
    in_bronze: int = 0
    pending: int = 0
    """In bronze, and not refined yet."""
    in_readings: int = 0
    quarantined: int = 0
    missing: int = 0
    """In bronze and refined, and in neither readings nor quarantine."""
    doubled: int = 0
    findings: tuple[str, ...] = ()
    """Name what is missing and doubled."""
    kept: int = 0
    """Of batches that arrived although their leaf says that it discarded them."""
    dead: int = 0
    """Dead letters, in bronze and quarantine; no other field counts them."""
    gone: Sequence[Range] = ()
    """Batches that bronze held and no longer does."""
    kept_rows: Unbacked = NOTHING
    """Rows of batches that bronze does not hold, and that were there or are known to have been stored."""
    invented: Unbacked = NOTHING
    """Rows of batches that bronze does not hold and of which nothing else is known."""
    partly: bool = False
    """Whether files of bronze can't be read."""


@dataclass(frozen=True, slots=True)
class Account:
    """A row of the table `audit`, whose schema says what each column means."""

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
        """Whether anything is gone without a reason, doubled, or not explained."""
        return self.missing > 0 or self.doubled > 0 or self.unexplained > 0


def of_run(domain: str, cls: str, run: str, claims: RunClaims, arrived: Arrived) -> Account:
    """The account of a run from what is claimed of it and what arrived."""
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
    """Return an account with a sentence for each doubt that its leaf has about lines of an input."""
    name = f"{account.domain}, class {account.cls}, run {account.run}"
    return replace(account, findings=[*account.findings, *(f"{name}: {doubt}" for doubt in doubts)])


def with_announced(
    account: Account, claimed: Readings | None, *, flows: bool, unheard: bool = False
) -> Account:
    """An account with what the leaf announced last: `claimed` of this run, None where it is an earlier run.
    `flows` says whether anything of the leaf's stream is still on its way to bronze. Where batches are
    `unheard` that no link will bring, nobody knows how much of the rest is on its way."""
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
    """The account of messages that no run speaks for. `discarded` are sequences of the leaf's stream with the
    direct messages that stood there; of these `arrived.kept` came all the same."""
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
