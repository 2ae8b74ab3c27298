"""Runs the job `audit`, which compares agents' acknowledgements with the tables.

It lists missing batches and places, and adds the accounts to the table `audit`. Exit code 3 means that data
is doubled or lost without a reason.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from agent.contract import Exit
from hub_jobs.audit import all_accounts, bronze_contents, outcome, report
from hub_jobs.audit.bronze_contents import BronzeContents, SeenCache, against_cache, open_cache
from hub_jobs.audit.in_transit import HubClient, ask_hub, in_transit_of
from hub_jobs.audit.ledgers import LedgerClaims
from hub_jobs.audit.rows import totals
from hub_jobs.audit.rows.hours import Hour, hours_of_transit, merged_hours
from hub_jobs.audit.rows.pieces import Past, UnsettledError
from hub_jobs.audit.rows.scan import AuditTables
from hub_jobs.audit.rows.survey import Survey
from hub_jobs.audit.rows.survey import survey as survey_bronze
from hub_jobs.audit.rows.totals import RowTotals
from hub_jobs.audit.settled.past import hours_of
from hub_jobs.audit.settled.settling import Settled, earlier_cut, next_cut, open_past, settle
from hub_jobs.audit.stream_gaps import find_gaps
from hub_jobs.job_loop import job_parser, metrics_of, run_once, say
from hub_jobs.receipts import roots
from hub_jobs.receipts.keys import HubKey, KeysError, Registry, hub_key, registry_of
from hub_jobs.receipts.roots import RootsReport
from hub_jobs.source.protocol import WireError
from hub_jobs.source.server import Server, add_server_options, server_of
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table, ensure_table, no_table, open_table
from hub_jobs.tables.hub_lake import why_not_hubs
from hub_jobs.tables.places import Place
from hub_jobs.tables.stream_history import StreamHistory

_NAME: Final = "audit"
_SHOWN: Final = timedelta(days=8)


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    parser = job_parser(_NAME, "Compare the ledgers with the tables.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accounts as JSON too")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="compare contents too: payloads with digests, and with readings and quarantine; it takes longer "
        "than refining all of bronze once more",
    )
    parser.add_argument(
        "--all", action="store_true", help="read again what earlier audits have settled, too; --deep does"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a picture of the hours")
    parser.add_argument(
        "--receipt-key",
        type=Path,
        metavar="FILE",
        help="sign roots with this seed, made by `petiole enrol` at the hub; with --leaves",
    )
    parser.add_argument(
        "--leaves", type=Path, metavar="FILE", help="the hub's configuration, which has the leaves' keys"
    )
    add_server_options(parser, required=False, why="what the leaves announced tells what is on its way")
    parser.add_argument(
        "--stream", action="append", help="an aggregate to ask about beside those in bronze (may be repeated)"
    )
    parser.add_argument(
        "--untold",
        dest="tell",
        action="store_false",
        help="with --server, do not tell the hub's agent, whose fleet page shows the newest audit",
    )
    given = parser.parse_args(argv)
    signing = _signing(parser, given)
    server = server_of(parser, given)
    asked = None if server is None else (server, given.stream or [])
    metrics = metrics_of(_NAME, parser, given)

    def tell(found: report.AuditReport) -> None:
        metrics.set_settled(found.settled.until)
        head, leaves = outcome.head_of(found, given.lake, deep=given.deep), outcome.leaves_of(found)
        metrics.set_audit(head, leaves)
        why = found.other_lake
        if not why and server is not None and given.tell:
            why = outcome.tell_hub(server, head, leaves)
        if why:
            say(_NAME, f"the hub's agent does not know of this audit: {why}")

    files = given.json, given.html
    work = partial(
        run, given.lake, *files, asked, deep=given.deep, again=given.all, signing=signing, tell=tell
    )
    return run_once(work, metrics)


def run(
    lake: Place,
    json_file: Path | None = None,
    html_file: Path | None = None,
    asked: tuple[Server, Sequence[str]] | None = None,
    *,
    deep: bool = False,
    again: bool = False,
    signing: tuple[HubKey, Registry] | None = None,
    tell: Callable[[report.AuditReport], None] | None = None,
) -> Exit:
    """Audit a lake, print its accounts, and write them to the tables `audit` and `audit_hours` and to the
    files.

    `again` reads settled data again. `signing` adds roots for settled hours, and checks all roots `again`.
    `asked` adds a server and streams for messages in transit; an unreachable hub only sets the exit code.
    `tell` receives the result.
    """
    at = datetime.now(UTC)
    if open_table(lake, "bronze") is None:
        say(_NAME, str(no_table(lake, "bronze", "ingest")))
        return Exit.USAGE
    for name in ("audit", "audit_hours"):
        open_table(lake, name)  # refused before anything is written
    unreachable: WireError | None = None
    hub: HubClient | None = None
    cache = open_cache(lake)
    if asked is not None:
        # Before bronze is opened: what ingest takes meanwhile is then no longer in transit.
        try:
            hub = ask_hub(asked[0], _streams(lake, asked[1]), cache.domains)
        except WireError as error:
            unreachable = error
            say(_NAME, f"what is on its way is not known: {error}")
    audited = _audit(lake, at, cache, hub, deep=deep, again=again)
    audited = replace(audited, hub_fault="" if unreachable is None else str(unreachable))
    if signing is not None:
        audited = replace(audited, receipts=_receipts(lake, audited, signing, again=again or deep))
    report.store(lake, audited)
    if tell is not None:
        tell(audited)
    if json_file is not None:
        json_file.write_text(report.as_json(audited))
    if html_file is not None:
        from hub_jobs.audit import html_report

        html_file.write_text(html_report.as_html(audited))
    print(report.as_text(audited))
    if audited.lost:
        return Exit.LOSS
    if audited.receipts.contradictions:
        return Exit.CONTRADICTED
    if unreachable is not None:
        return Exit.UNREACHABLE
    return Exit.FAILED if audited.untrue or audited.other_lake else Exit.WELL


def _signing(parser: ArgumentParser, given: Namespace) -> tuple[HubKey, Registry] | None:
    if given.receipt_key is None and given.leaves is None:
        return None
    if given.receipt_key is None or given.leaves is None:
        parser.error("--receipt-key and --leaves go together")
    try:
        return hub_key(given.receipt_key), registry_of(given.leaves)
    except KeysError as error:
        parser.error(str(error))


def _receipts(
    lake: Place, audited: report.AuditReport, signing: tuple[HubKey, Registry], *, again: bool
) -> RootsReport:
    """Add roots for settled hours, or after a full read compare all roots first."""
    again = again or bool(audited.settled.read_again)
    before = roots.check(lake, *signing) if again else RootsReport()
    after = roots.extend(lake, audited.settled.until, *signing)
    if not again:
        return after
    # The full check names what earlier roots list.
    new = [text for text in after.contradictions if "are in its roots before" not in text]
    return RootsReport(before.contradictions + new, before.unproven + after.unproven, after.until)


def _streams(lake: Place, more: Sequence[str]) -> list[str]:
    histories = stream_history.all_of(ensure_table(lake, "bronze"))
    return sorted({history.stream for history in histories} | set(more))


def _audit(
    lake: Place, at: datetime, cache: SeenCache, hub: HubClient | None, *, deep: bool, again: bool
) -> report.AuditReport:
    if again or deep:
        return _audited(lake, at, cache, hub, deep=deep, again=True)
    try:
        return _audited(lake, at, cache, hub, deep=False, again=False)
    except UnsettledError as error:
        say(_NAME, f"all is read again: {error}")
        audited = _audited(lake, at, cache, hub, deep=False, again=True)
        return replace(audited, settled=replace(audited.settled, read_again=str(error)))


class _Counted(NamedTuple):
    tables: AuditTables
    survey: Survey
    held: BronzeContents
    claims: LedgerClaims
    rows: RowTotals


def _counted(tables: AuditTables, cache: SeenCache, histories: Sequence[StreamHistory]) -> _Counted:
    survey = survey_bronze(tables, cache.upto(histories))
    held = against_cache(cache, survey.before, survey.after)
    claims = survey.records.claims()
    return _Counted(tables, survey, held, claims, totals.total_rows(tables, claims, held))


def _settle(lake: Place, table: Table, counted: _Counted, recount: Callable[[AuditTables], _Counted]) -> int:
    """Store the data in order for the next audit, up to the first problem."""
    if cut := earlier_cut(counted.tables, counted.rows):
        counted = recount(replace(counted.tables, cut=cut))
    return settle(lake, table, counted.tables, counted.survey, counted.rows)


def _audited(
    lake: Place, at: datetime, cache: SeenCache, hub: HubClient | None, *, deep: bool, again: bool
) -> report.AuditReport:
    # The oldest snapshot first: what ingest and refine commit meanwhile then adds nothing that bronze lacks.
    known = open_table(lake, "settled")
    readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
    bronze = ensure_table(lake, "bronze")
    settled = ensure_table(lake, "settled", known)  # made once the others were not refused
    histories = stream_history.all_of(bronze)
    tables = AuditTables(
        bronze,
        readings,
        quarantine,
        stream_history.offsets(histories, readings),
        stream_history.offsets(histories, quarantine),
    )
    if not again:
        tables = replace(tables, past=open_past(settled, tables, at))
    tables = replace(tables, cut=next_cut(tables, at))
    counted = _counted(tables, cache, histories)
    _, survey, held, claims, rows = counted
    altered, notes = _compared(tables) if deep else ([], [])
    until = tables.past.until
    if not altered:
        until = _settle(lake, settled, counted, lambda other: _counted(other, cache, histories))
    in_transit = None if hub is None else in_transit_of(hub.leaves, held.ever, claims.origins)
    runs = all_accounts.of_runs(tables, claims, held, rows, in_transit)
    gaps = find_gaps(bronze, held, claims, hub.streams if hub else {}, tables.unreadable)
    return report.AuditReport(
        at,
        [*runs, *all_accounts.of_devices(tables, claims, held, rows.classes)],
        gaps,
        claims.unreadable + rows.unnamed + notes + (hub.faults if hub else []),
        _hours(tables.past, [*rows.hours, *hours_of_transit(in_transit or ())], at),
        in_transit,
        [
            *rows.unexplained,
            *bronze_contents.uncommitted_sentences(bronze, held, histories, survey.rows),
        ],
        tables.unreadable,
        [*bronze_contents.stale_sentences(held, cache, readings, histories)],
        altered=altered,
        settled=Settled(until),
        doubts=sum(map(len, claims.doubts.values())),
        other_lake=why_not_hubs(hub.lake, lake, bronze) or "" if hub else "",
    )


def _compared(tables: AuditTables) -> tuple[list[str], list[str]]:
    from hub_jobs.audit.compare_contents import compare_contents

    found = compare_contents(tables)
    return found.sentences, found.notes


def _hours(past: Past, hours: Sequence[Hour], at: datetime) -> list[Hour]:
    """Return hours with new data and the last days, for the fleet page."""
    return merged_hours([*hours, *hours_of(past, hours, at - _SHOWN)])
