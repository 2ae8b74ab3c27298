"""Makes the account of one run: what its agent said against what arrived. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.contract import Doubt, Readings
from agent.contract.ranges import size, text, union, without
from hub_jobs.audit.account import Account, Arrived, RunClaims
from hub_jobs.audit.findings import discarded_of, findings_of, unbacked


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
