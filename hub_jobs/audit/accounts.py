"""The account of one run: what its agent said against what arrived. Pure.

Its agent promised what it acknowledged as stored. A run that was killed never says how it ended; what it
had only accepted in memory was not promised and is an open tail, with its size as far as it is known, but
no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agent.contract import Readings
from hub_jobs.audit.findings import discarded_of, findings_of, unbacked
from hub_jobs.audit.run_claims import RunClaims
from hub_jobs.tables.ranges import Range, size, text, union, without


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
