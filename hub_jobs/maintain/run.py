"""Runs the job `maintain`, which keeps the tables small and quick, without Spark.

It merges small files, drops old refined payloads of `bronze`, deletes old settled readings and old audits,
and vacuums unreferenced files. Each step is one commit beside running jobs. It never drops a bronze row's
identity and digest: repeats are recognised by them, and the audit counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import Exit
from hub_jobs.audit.settled.settling import SKEW, newest_arrival
from hub_jobs.job_loop import Stop, job_parser, metrics_of, never, run_job, say
from hub_jobs.maintain import expire
from hub_jobs.maintain.expire import drop_old_audits, why_young
from hub_jobs.metrics import JobMetrics
from hub_jobs.tables import stream_history
from hub_jobs.tables.compaction import compacted, foreign_files, groups, healed, rewrite, small_files
from hub_jobs.tables.delta import Table, ensure_table, no_table, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.schemas import SCHEMAS
from hub_jobs.tables.stream_history import FileHistory, StreamHistory, file_histories, mixed_files
from hub_jobs.times import back, micros

_NAME: Final = "maintain"
_LEAST_VACUUM_DAYS: Final = 1
_KEPT: Final = r"^tel\.[^.]+\.[^.]+\._(?:ledger|clock)$"
"""Subjects whose small payloads stay, because audits and corrections reread them."""


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """The command line's options; times in days."""

    lake: Place
    thin_after: float | None
    vacuum_after: float
    dry_run: bool
    keep: float | None = None


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    options, metrics = _options(argv)
    return run_job(partial(_measured, options, metrics), None, metrics)


def _measured(options: MaintainOptions, metrics: JobMetrics, stop: Stop) -> Exit:
    code = run(options, stop)
    metrics.measure(options.lake, SCHEMAS)
    return code


def run(options: MaintainOptions, stop: Stop = never) -> Exit:
    """Maintain all tables of a lake, commit by commit until stopped. Raises `ConflictError` for a parallel
    run.
    """
    tables = [table for name in SCHEMAS if (table := open_table(options.lake, name)) is not None]
    if not tables:
        say(_NAME, str(no_table(options.lake, "bronze", "ingest")))
        return Exit.USAGE
    tables = [_heal(options, ensure_table(options.lake, table.name, table, room=0), stop) for table in tables]
    clock = datetime.now(UTC)
    now = _now(tables, clock)
    if options.keep is not None and not stop():
        _expire(options, now, timedelta(days=options.keep))
    if options.thin_after is not None and not stop():
        _thin_old(options, now, timedelta(days=options.thin_after))
    if not stop():
        drop_old_audits(options.lake, dry_run=options.dry_run)
    for table in tables:
        compacted_table = _compact(options, table.newest(), stop)
        if stop():
            break
        _vacuum(options, compacted_table, clock - now)
    return Exit.WELL


def _now(tables: Sequence[Table], clock: datetime) -> datetime:
    """Return the reference time for ages: this machine's clock, limited to soon after the newest arrival.

    A clock far ahead would expire everything, even files of an uncommitted job.
    """
    bronze = next((table for table in tables if table.name == "bronze"), None)
    newest = None if bronze is None else newest_arrival(bronze, clock)
    if newest is None or clock <= newest + SKEW:
        return clock
    say(
        _NAME,
        f"ages count from {newest + SKEW:%Y-%m-%d %H:%M}, a day after the newest message arrived, for this "
        f"machine's clock says {clock:%Y-%m-%d %H:%M}: set it if it is ahead, or run ingest",
    )
    return newest + SKEW


def _heal(options: MaintainOptions, table: Table, stop: Stop) -> Table:
    """Rewrite files of other programs; returns the new snapshot."""
    paths = foreign_files(table)
    if not paths:
        return table
    if options.dry_run:
        say(_NAME, f"{table.name}: {len(paths)} files of another program would be written again")
        return table
    done = 0
    for path in takewhile(lambda _: not stop(), paths):
        table.rewrite(healed(options.lake, table, path), [path])
        table = table.newest()
        done += 1
    say(_NAME, f"{table.name}: {done} files of another program are written again")
    return table


def _expire(options: MaintainOptions, now: datetime, keep: timedelta) -> None:
    planned = expire.plan(options.lake, now, keep)
    if planned is None:
        return
    if options.dry_run:
        for name, paths in planned.paths.items():
            say(_NAME, f"{name}: {len(paths)} files that arrived before {planned.moment} would be deleted")
    else:
        expire.expire(planned)
    _thin(options, planned.moment)


def _compact(options: MaintainOptions, table: Table, stop: Stop) -> Table:
    """Merge small files; returns the new snapshot."""
    small = small_files(table)
    if not groups(small):  # nor would there be any without the late files
        return table
    late = expire.late_files(options.lake, table)
    found = groups(file for file in small if file.path not in late)
    if not found:
        return table
    if options.dry_run:
        say(_NAME, f"{table.name}: {sum(map(len, found))} small files would become {len(found)}")
        return table
    count = made = 0
    for group in takewhile(lambda _: not stop(), found):
        # A commit for each group: what another writer overtakes costs the work on one of them.
        paths = [file.path for file in group]
        written = compacted(options.lake, table, paths)
        table.rewrite(written, paths)
        table = table.newest()
        count += len(paths)
        made += len(written)
    say(_NAME, f"{table.name}: {count} small files became {made}")
    return table


def _thin_old(options: MaintainOptions, now: datetime, age: timedelta) -> None:
    bronze, before = open_table(options.lake, "bronze"), back(now, age)
    if bronze is not None and (why := why_young(bronze, micros(before), now, age, "--thin-bronze-after")):
        say(_NAME, f"no payload is dropped for its age: {why}")
        return
    _thin(options, before)


def _thin(options: MaintainOptions, before: datetime) -> None:
    bronze, readings = open_table(options.lake, "bronze"), open_table(options.lake, "readings")
    if bronze is None or readings is None:
        return
    ends: dict[str, int] = {}
    paths: list[str] = []
    files = file_histories(bronze)
    for history in stream_history.refined(stream_history.all_of(bronze), readings):
        chosen = _to_thin(files, history, bronze.offset(history.thinned) or 0, before)
        if chosen:
            paths += [each.path for each in chosen]
            ends[history.thinned] = max(each.last for each in chosen)
    if not paths:
        return
    if options.dry_run:
        say(_NAME, f"bronze: the payloads in {len(paths)} files would be dropped")
        return
    written = [file for path in paths for file in rewrite(options.lake, bronze, [path], _thinned)]
    for table in (readings, open_table(options.lake, "quarantine")):
        if table is not None:
            table.sync()  # what came of the payloads is nowhere else then
    bronze.rewrite(written, paths, ends, changed=True)
    say(
        _NAME, f"bronze: the payloads in {len(paths)} files that arrived before {before:%Y-%m-%d} are dropped"
    )


def _to_thin(
    files: Sequence[FileHistory], history: StreamHistory, thinned: int, before: datetime
) -> list[FileHistory]:
    """Return old, refined files of a history up to the first that is not, or that mixes histories."""
    several = mixed_files(files)
    mine = [each for each in files if each.history == history.history and each.last > thinned]
    ready = [
        each
        for each in mine
        if each.last <= (history.done or 0) and each.arrived < before and each.path not in several
    ]
    waiting = min((each.first for each in mine if each not in ready), default=None)
    return [each for each in ready if waiting is None or each.last < waiting]


def _thinned(rows: pa.Table) -> pa.Table:
    kept = pc.match_substring_regex(rows["subject"], _KEPT)
    payload = pc.if_else(kept, rows["payload"], pa.scalar(None, pa.binary()))
    return rows.set_column(rows.column_names.index("payload"), rows.schema.field("payload"), payload)


def _vacuum(options: MaintainOptions, table: Table, ahead: timedelta) -> None:
    hours = options.vacuum_after * 24 + ahead / timedelta(hours=1)
    gone = table.vacuum(hours, dry_run=options.dry_run)
    if gone:
        verb = "would be" if options.dry_run else "were"
        say(_NAME, f"{table.name}: {len(gone)} files that no table names {verb} deleted")


def _options(argv: Sequence[str] | None) -> tuple[MaintainOptions, JobMetrics]:
    parser = job_parser(_NAME, "Keep the tables small and quick.")
    parser.add_argument(
        "--thin-bronze-after",
        type=float,
        metavar="DAYS",
        help="drop payloads of bronze that are refined and older than this (default: keep them); what is "
        "dropped can't be refined again",
    )
    parser.add_argument(
        "--keep",
        type=float,
        metavar="DAYS",
        help="delete readings, quarantine and payloads of bronze that arrived longer ago, once an audit has "
        "settled them (default: keep them)",
    )
    parser.add_argument(
        "--vacuum-after",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="delete files that no table names after this (default: 7); longer than any job runs",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    given = parser.parse_args(argv)
    if given.vacuum_after < _LEAST_VACUUM_DAYS:
        parser.error(f"--vacuum-after is {given.vacuum_after:g}: a job that still runs would lose its files")
    if given.thin_bronze_after is not None and given.thin_bronze_after < 0:
        parser.error(f"--thin-bronze-after is {given.thin_bronze_after:g}; give a number of days from 0 on")
    if given.keep is not None and given.keep < 0:
        parser.error(f"--keep is {given.keep:g}; give a number of days from 0 on")
    options = MaintainOptions(
        given.lake, given.thin_bronze_after, given.vacuum_after, given.dry_run, given.keep
    )
    return options, metrics_of(_NAME, parser, given)
