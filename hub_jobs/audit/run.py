"""The job `audit`: what the agents acknowledged against what is in the tables.

Each ledger against the batches in bronze, each batch in bronze against its readings and quarantine, and
every sequence of a hub's or a source's stream. What is missing is named by its batches and places; exit
code 3 when something is gone without a reason, or doubled. The accounts also go into the table `audit`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agent.contract import Exit
from hub_jobs import hub_client
from hub_jobs.audit import bronze_contents, by_hour, html_report, report
from hub_jobs.audit.bronze_contents import BronzeContents, cached, compared
from hub_jobs.audit.claims import accounts, ledgers
from hub_jobs.audit.claims.accounts import Account, Arrived, with_announced
from hub_jobs.audit.claims.in_transit import OnTheWay, on_the_way
from hub_jobs.audit.claims.ledgers import Run, Spoken, remembered
from hub_jobs.audit.contents.compare import Differences
from hub_jobs.audit.contents.compare import compared as compared_contents
from hub_jobs.audit.rows import lookups, scan, totals
from hub_jobs.audit.rows.mismatches import Rows
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.audit.rows.totals import Class, LedgerClaims
from hub_jobs.audit.streams.gaps import find_gaps
from hub_jobs.exits import ended, say
from hub_jobs.hub_client import HubClient
from hub_jobs.source.protocol import WireError
from hub_jobs.source.server import Server
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
    hub_client.add_options(parser, required=False, why="what the leaves announced tells what is on its way")
    parser.add_argument(
        "--stream", action="append", help="an aggregate to ask about beside those in bronze (may be repeated)"
    )
    given = parser.parse_args(argv)
    server = hub_client.server_of(parser, given)
    asked = None if server is None else (server, given.stream or [])
    return ended(_NAME, lambda: run(given.lake, given.json, given.html, asked, deep=given.deep))


def run(
    lake: Place,
    json_file: Path | None = None,
    html_file: Path | None = None,
    asked: tuple[Server, Sequence[str]] | None = None,
    *,
    deep: bool = False,
) -> Exit:
    """Audit a lake, print its accounts, and write them to the tables `audit` and `audit_hours` and to the
    files. With `asked`, a server and streams beside those in bronze, what is on its way too; a hub that does
    not answer takes nothing from the rest, and the exit code says so."""
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, f"there is no table {lake / 'bronze'}: give --lake the directory that ingest writes to")
        return Exit.USAGE
    away: WireError | None = None
    there: HubClient | None = None
    if asked is not None:
        # Before the tables are opened: what ingest takes meanwhile is then no longer on its way.
        try:
            there = hub_client.ask(asked[0], _streams(lake, asked[1]))
        except WireError as error:
            away = error
            say(_NAME, f"what is on its way is not known: {error}")
    found = replace(_audit(lake, at, there, deep=deep), hub_fault="" if away is None else str(away))
    report.store(lake, found)
    if json_file is not None:
        json_file.write_text(report.as_json(found))
    if html_file is not None:
        html_file.write_text(html_report.as_html(found))
    print(report.as_text(found))
    if found.lost:
        return Exit.LOSS
    if away is not None:
        return Exit.UNREACHABLE
    return Exit.FAILED if found.untrue else Exit.WELL


def _streams(lake: Place, more: Sequence[str]) -> list[str]:
    return sorted(
        {history.stream for history in stream_history.all_of(ensure_table(lake, "bronze"))} | set(more)
    )


def _audit(lake: Place, at: datetime, there: HubClient | None, *, deep: bool) -> report.AuditReport:
    # The oldest snapshot first: what ingest and refine commit meanwhile then adds nothing that bronze lacks.
    cache = cached(lake)
    readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
    bronze = ensure_table(lake, "bronze")
    known = stream_history.all_of(bronze)
    tables = AuditTables(
        bronze,
        readings,
        quarantine,
        stream_history.offsets(known, readings),
        stream_history.offsets(known, quarantine),
    )
    surveyed = scan.survey(tables, cache.upto(known))
    held = compared(cache, surveyed.before, surveyed.after)
    said = _said(surveyed.spoken)
    found = totals.tallied(tables, said, held)
    differing = compared_contents(tables) if deep else Differences()
    moving = None if there is None else on_the_way(there.leaves, held.ever, said.origins)
    runs = {(transit.domain, transit.cls, transit.ledger.run) for transit in moving or () if transit.ledger}
    for key in said.ledgers.keys() | said.remembered.keys() | runs | found.strays.keys() | held.gone_runs():
        found.runs.setdefault(key, Arrived())
    rows = [
        accounts.of_run(
            *key,
            said.ledgers.get(key),
            said.remembered.get(key),
            _placed(tables, said, held, key, arrived, found.strays.get(key)),
        )
        for key, arrived in sorted(found.runs.items())
    ]
    if moving is not None:
        rows = [_announced(row, moving, said, held.ever) for row in rows]
    gaps = find_gaps(
        bronze,
        held,
        said.gone,
        said.origins,
        said.lost,
        there.streams if there else {},
        tables.unreadable,
    )
    return report.AuditReport(
        at,
        rows + _devices(tables, said, held, found.classes),
        gaps,
        said.unreadable + found.unnamed + differing.notes + (there.faults if there else []),
        by_hour.merged([*found.hours, *by_hour.of_way(moving or ())]),
        moving,
        [*found.unexplained, *bronze_contents.invented(bronze, held, known, surveyed.rows)],
        tables.unreadable,
        [*bronze_contents.untrue(held, cache, readings, known)],
        altered=differing.sentences,
    )


def _announced(
    account: Account, moving: Sequence[OnTheWay], said: LedgerClaims, held: SeenNumbers
) -> Account:
    """An account with what its leaf announced of it, if it did."""
    run = account.run or ""
    key = (account.domain or "", account.cls or "", run)
    for transit in moving:
        if (transit.domain, transit.cls) == (account.domain, account.cls):
            heard = max(
                (key[2] for key in said.ledgers if key[:2] == (transit.domain, transit.cls)), default=""
            )
            if run < heard:  # in the leaf's stream all of it stands before a record that came
                return replace(account, on_the_way=0)
            own = transit.ledger is not None and transit.ledger.run == run
            untold = accounts.unheard(said.ledgers.get(key), held.ranges(batch_space(*key)))
            return with_announced(
                account,
                transit.ledger.readings if own and transit.ledger else None,
                flows=bool(transit.messages),
                unheard=bool(transit.stayed and untold),
            )
    return account


def _said(spoken: Spoken) -> LedgerClaims:
    ledgers = spoken.ledgers()
    return LedgerClaims(
        ledgers,
        remembered(ledgers.values()),
        spoken.gone(),
        spoken.origins,
        spoken.lost,
        [str(record) for record in spoken.first_unusable()],
    )


def _placed(
    tables: AuditTables,
    said: LedgerClaims,
    held: BronzeContents,
    key: Run,
    arrived: Arrived,
    strays: Rows | None,
) -> Arrived:
    """What arrived of a run with the numbers of its batches, and how much of it was called discarded; and
    what is in other tables of batches that bronze has not."""
    numbers, gone = held.here.ranges(batch_space(*key)), held.gone.ranges(batch_space(*key))
    ledger = said.ledgers.get(key)
    named: list[Range] = [(first, last) for first, last, _, _ in ledger.discarded] if ledger else []
    came = intersection(named, numbers)
    kept = lookups.kept_readings(tables, key, came) if came else 0
    due = accounts.promised_or_gone(ledger, said.remembered.get(key), gone)
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
    tables: AuditTables, said: LedgerClaims, held: BronzeContents, arrived: dict[Class, Arrived]
) -> list[Account]:
    """The accounts of messages that are of no run, with those of them that leaves discarded."""
    named: dict[Class, list[ledgers.Named]] = {}
    kept: dict[Class, int] = {}
    for (domain, cls, created), ranges in said.gone.items():
        direct = [evicted for evicted in ranges if evicted[2]]
        named.setdefault((domain, cls), []).extend(direct)
        for (stream, identity), origins in said.origins.items():
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
