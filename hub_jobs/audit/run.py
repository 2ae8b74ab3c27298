"""The job `audit`: what the agents acknowledged against what is in the tables.

`hub_jobs.audit` says which tables are compared with which. What is missing is named by its batches and
places; exit code 3 when something is gone without a reason, or doubled. The accounts also go into the table
`audit`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agent.contract import Exit
from hub_jobs.audit import accounts, bronze_contents, html_report, ledgers, report
from hub_jobs.audit.accounts import Account, Arrived, with_announced
from hub_jobs.audit.bronze_contents import BronzeContents, against_cache, open_cache
from hub_jobs.audit.compare_contents import Differences, compare_contents
from hub_jobs.audit.in_transit import HubClient, InTransit, ask_hub, in_transit_of
from hub_jobs.audit.ledgers import LedgerClaims, Run
from hub_jobs.audit.rows import lookups, scan, totals
from hub_jobs.audit.rows.mismatches import StrayRows
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.audit.rows.totals import Class, RowTotals
from hub_jobs.audit.stream_gaps import find_gaps
from hub_jobs.job_loop import add_metrics_option, metrics_of, run_once, say
from hub_jobs.source.protocol import WireError
from hub_jobs.source.server import Server, add_server_options, server_of
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import ensure_table, open_table
from hub_jobs.tables.places import Place, parse_place
from hub_jobs.tables.ranges import Range, intersection
from hub_jobs.tables.seen import SeenNumbers, batch_space, source_space

_NAME: Final = "audit"


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(prog="audit.py", description="Compare the ledgers with the tables.")
    parser.add_argument("--lake", required=True, type=parse_place, help="the directory of the tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts as JSON too")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="compare contents too: payloads with digests, and with readings and quarantine; it takes longer "
        "than refining all of bronze once more",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a picture of the hours")
    add_server_options(parser, required=False, why="what the leaves announced tells what is on its way")
    parser.add_argument(
        "--stream", action="append", help="an aggregate to ask about beside those in bronze (may be repeated)"
    )
    add_metrics_option(parser)
    given = parser.parse_args(argv)
    server = server_of(parser, given)
    asked = None if server is None else (server, given.stream or [])
    metrics = metrics_of(_NAME, parser, given)
    return run_once(_NAME, lambda: run(given.lake, given.json, given.html, asked, deep=given.deep), metrics)


def run(
    lake: Place,
    json_file: Path | None = None,
    html_file: Path | None = None,
    asked: tuple[Server, Sequence[str]] | None = None,
    *,
    deep: bool = False,
) -> Exit:
    """Audit a lake, print its accounts, and write them to the tables `audit` and `audit_hours` and to the
    files. With `asked`, a server and streams in addition to those in bronze, what is in transit too; an
    unreachable hub takes nothing from the rest, and the exit code says so."""
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, f"there is no table {lake / 'bronze'}: give --lake the directory that ingest writes to")
        return Exit.USAGE
    unreachable: WireError | None = None
    hub: HubClient | None = None
    if asked is not None:
        # Before the tables are opened: what ingest takes meanwhile is then no longer in transit.
        try:
            hub = ask_hub(asked[0], _streams(lake, asked[1]))
        except WireError as error:
            unreachable = error
            say(_NAME, f"what is on its way is not known: {error}")
    audited = _audit(lake, at, hub, deep=deep)
    audited = replace(audited, hub_fault="" if unreachable is None else str(unreachable))
    report.store(lake, audited)
    if json_file is not None:
        json_file.write_text(report.as_json(audited))
    if html_file is not None:
        html_file.write_text(html_report.as_html(audited))
    print(report.as_text(audited))
    if audited.lost:
        return Exit.LOSS
    if unreachable is not None:
        return Exit.UNREACHABLE
    return Exit.FAILED if audited.untrue else Exit.WELL


def _streams(lake: Place, more: Sequence[str]) -> list[str]:
    histories = stream_history.all_of(ensure_table(lake, "bronze"))
    return sorted({history.stream for history in histories} | set(more))


def _audit(lake: Place, at: datetime, hub: HubClient | None, *, deep: bool) -> report.AuditReport:
    # The oldest snapshot first: what ingest and refine commit meanwhile then adds nothing that bronze lacks.
    cache = open_cache(lake)
    readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
    bronze = ensure_table(lake, "bronze")
    histories = stream_history.all_of(bronze)
    tables = AuditTables(
        bronze,
        readings,
        quarantine,
        stream_history.offsets(histories, readings),
        stream_history.offsets(histories, quarantine),
    )
    survey = scan.survey(tables, cache.upto(histories))
    held = against_cache(cache, survey.before, survey.after)
    claims = survey.records.claims()
    rows = totals.total_rows(tables, claims, held)
    differing = compare_contents(tables) if deep else Differences()
    in_transit = None if hub is None else in_transit_of(hub.leaves, held.ever, claims.origins)
    runs = _runs(tables, claims, held, rows, in_transit)
    gaps = find_gaps(
        bronze,
        held,
        claims.gone,
        claims.origins,
        claims.lost,
        hub.streams if hub else {},
        tables.unreadable,
    )
    return report.AuditReport(
        at,
        [*runs, *_devices(tables, claims, held, rows.classes)],
        gaps,
        claims.unreadable + rows.unnamed + differing.notes + (hub.faults if hub else []),
        totals.merged_hours([*rows.hours, *totals.hours_of_transit(in_transit or ())]),
        in_transit,
        [
            *rows.unexplained,
            *bronze_contents.uncommitted_sentences(bronze, held, histories, survey.rows),
        ],
        tables.unreadable,
        [*bronze_contents.stale_sentences(held, cache, readings, histories)],
        altered=differing.sentences,
    )


def _runs(
    tables: AuditTables,
    claims: LedgerClaims,
    held: BronzeContents,
    rows: RowTotals,
    in_transit: Sequence[InTransit] | None,
) -> list[Account]:
    """The accounts of all runs that a leaf, bronze or another table names."""
    announced = {
        (transit.domain, transit.cls, transit.ledger.run) for transit in in_transit or () if transit.ledger
    }
    arrived = dict(rows.runs)
    named = claims.ledgers.keys() | claims.remembered.keys() | announced | rows.strays.keys()
    for run in named | held.gone_runs():
        arrived.setdefault(run, Arrived())
    found = [
        accounts.of_run(
            *run,
            claims.ledgers.get(run),
            claims.remembered.get(run),
            _placed(tables, claims, held, run, of_run, rows.strays.get(run)),
        )
        for run, of_run in sorted(arrived.items())
    ]
    if in_transit is None:
        return found
    return [_announced(account, in_transit, claims, held.ever) for account in found]


def _announced(
    account: Account, in_transit: Sequence[InTransit], claims: LedgerClaims, ever: SeenNumbers
) -> Account:
    """An account with what its leaf announced of it, if it did."""
    run = account.run or ""
    key = (account.domain or "", account.cls or "", run)
    for transit in in_transit:
        if (transit.domain, transit.cls) == (account.domain, account.cls):
            heard = max((known[2] for known in claims.ledgers if known[:2] == key[:2]), default="")
            if run < heard:  # in the leaf's stream all of it stands before a record that came
                return replace(account, on_the_way=0)
            own = transit.ledger is not None and transit.ledger.run == run
            unheard = accounts.unheard(claims.ledgers.get(key), ever.ranges(batch_space(*key)))
            return with_announced(
                account,
                transit.ledger.readings if own and transit.ledger else None,
                flows=bool(transit.messages),
                unheard=bool(transit.stayed and unheard),
            )
    return account


def _placed(
    tables: AuditTables,
    claims: LedgerClaims,
    held: BronzeContents,
    key: Run,
    arrived: Arrived,
    strays: StrayRows | None,
) -> Arrived:
    """What arrived of a run with the numbers of its batches, and how much of it was called discarded; and
    what is in other tables of batches that bronze has not."""
    numbers, gone = held.here.ranges(batch_space(*key)), held.gone.ranges(batch_space(*key))
    ledger = claims.ledgers.get(key)
    named: list[Range] = [(first, last) for first, last, _, _ in ledger.discarded] if ledger else []
    came = intersection(named, numbers)
    kept = lookups.kept_readings(tables, key, came) if came else 0
    due = accounts.promised_or_gone(ledger, claims.remembered.get(key), gone)
    kept_rows, invented = strays.of(due) if strays is not None else (accounts.NOTHING, accounts.NOTHING)
    partly = any(file.table == "bronze" for file in tables.unreadable)
    return replace(
        arrived,
        batches=numbers,
        kept=kept,
        gone=gone,
        kept_rows=kept_rows,
        invented=invented,
        partly=partly,
    )


def _devices(
    tables: AuditTables, claims: LedgerClaims, held: BronzeContents, arrived: dict[Class, Arrived]
) -> list[Account]:
    """The accounts of messages that are of no run, with those of them that leaves discarded."""
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
