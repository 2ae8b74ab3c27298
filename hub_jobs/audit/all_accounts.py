"""Makes the accounts of all runs and of messages that devices sent directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.contract.ranges import intersection, union
from hub_jobs.audit import accounts, ledgers
from hub_jobs.audit.account import NOTHING, Account, Arrived, RunClaims
from hub_jobs.audit.accounts import with_announced
from hub_jobs.audit.bronze_contents import BronzeContents
from hub_jobs.audit.in_transit import InTransit
from hub_jobs.audit.ledgers import LedgerClaims, Run
from hub_jobs.audit.rows import lookups
from hub_jobs.audit.rows.mismatches import StrayRows
from hub_jobs.audit.rows.pieces import Class
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.audit.rows.totals import RowTotals
from hub_jobs.tables.spaces import SeenNumbers, batch_space, source_space


def of_runs(
    tables: AuditTables,
    claims: LedgerClaims,
    held: BronzeContents,
    rows: RowTotals,
    in_transit: Sequence[InTransit] | None,
) -> list[Account]:
    """Return the accounts of all runs named by a leaf, bronze or another table."""
    announced = {
        (transit.domain, transit.cls, transit.ledger.run) for transit in in_transit or () if transit.ledger
    }
    arrived = dict(rows.runs)
    named = claims.ledgers.keys() | claims.remembered.keys() | announced | rows.strays.keys()
    for run in named | held.gone_runs():
        arrived.setdefault(run, Arrived())
    found = [
        accounts.with_doubts(
            accounts.of_run(
                *run,
                claims.of(run),
                placed(tables, claims.of(run), held, run, of_run, rows.strays.get(run)),
            ),
            claims.doubts.get(run, ()),
        )
        for run, of_run in sorted(arrived.items())
    ]
    if in_transit is None:
        return found
    return [announced_of(account, in_transit, claims, held.ever) for account in found]


def announced_of(
    account: Account, in_transit: Sequence[InTransit], claims: LedgerClaims, ever: SeenNumbers
) -> Account:
    """Add the leaf's announcement to an account, if any."""
    run = account.run or ""
    key = (account.domain or "", account.cls or "", run)
    for transit in in_transit:
        if (transit.domain, transit.cls) == (account.domain, account.cls):
            heard = max((known[2] for known in claims.ledgers if known[:2] == key[:2]), default="")
            if run < heard:  # in the leaf's stream all of it stands before a record that came
                return replace(account, on_the_way=0)
            own = transit.ledger is not None and transit.ledger.run == run
            unheard = claims.of(key).unheard(ever.ranges(batch_space(*key)))
            return with_announced(
                account,
                transit.ledger.readings if own and transit.ledger else None,
                flows=bool(transit.messages),
                unheard=bool(transit.stayed and unheard),
            )
    return account


def placed(
    tables: AuditTables,
    claims: RunClaims,
    held: BronzeContents,
    key: Run,
    arrived: Arrived,
    strays: StrayRows | None,
) -> Arrived:
    """Complete a run's arrived data with its batch numbers, discarded readings, and rows without a batch in
    bronze.
    """
    numbers, gone = held.here.ranges(batch_space(*key)), held.gone.ranges(batch_space(*key))
    came = intersection(claims.discarded, numbers)
    kept_rows, invented = strays.of(union(claims.stored, gone)) if strays is not None else (NOTHING, NOTHING)
    return replace(
        arrived,
        batches=numbers,
        kept=lookups.kept_readings(tables, key, came) if came else 0,
        gone=gone,
        kept_rows=kept_rows,
        invented=invented,
        partly=any(file.table == "bronze" for file in tables.unreadable),
    )


def of_devices(
    tables: AuditTables, claims: LedgerClaims, held: BronzeContents, arrived: dict[Class, Arrived]
) -> list[Account]:
    """Return the accounts of messages without run, including discards by leaves."""
    named: dict[Class, list[ledgers.EvictedRange]] = {}
    kept: dict[Class, int] = {}
    for (domain, cls, created), ranges in claims.gone.items():
        direct = [evicted for evicted in ranges if evicted[2]]
        named.setdefault((domain, cls), []).extend(direct)
        for (stream, identity), origins in claims.origins.items():
            if not direct or (domain, cls, created) not in origins:
                continue
            here = held.here.ranges(source_space(stream, identity))
            came = intersection([(first, last) for first, last, _, _ in direct], here)
            if came:
                kept.setdefault((domain, cls), 0)
                kept[domain, cls] += lookups.kept_messages(tables, stream, identity, came)
    for place in named:
        if named[place]:
            arrived.setdefault(place, Arrived())
    return [
        accounts.of_direct(*place, replace(counts, kept=kept.get(place, 0)), named.get(place, ()))
        for place, counts in sorted(arrived.items(), key=lambda item: tuple(map(str, item[0])))
    ]
