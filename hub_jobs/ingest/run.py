"""Runs the job `ingest`, which copies new messages of the hub's aggregates to the table `bronze`.

Rows and stream offset share a commit. Server and table are asked first, so an idle run starts no Spark
session. A gap stops nothing; it is reported with exit code 3. After a commit the registrar learns what it may
purge. `--every 30s` repeats in one process; `--then refine` runs that job after each run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.contract import (
    Committed,
    ContractError,
    Exit,
    HubLake,
    aggregate,
    cell_api,
    committed_subject,
    parse_synced,
)
from agent.contract.ranges import Range as Sequences
from agent.contract.ranges import text, union, without
from hub_jobs.ingest.beginning import purged_before
from hub_jobs.ingest.bronze import IngestPart, StreamOrigin, ingest
from hub_jobs.ingest.unfinished import take_back_unfinished
from hub_jobs.job_loop import NextJob, Stop, ended, gravest, job_parser, metrics_of, never, run_job, say
from hub_jobs.metrics import JobMetrics
from hub_jobs.source.cluster import tasks_at_once
from hub_jobs.source.connection import Connection
from hub_jobs.source.copies import first_held
from hub_jobs.source.plan import Range, split
from hub_jobs.source.protocol import Denied, SourceApiError, UnknownIdentity, Unreachable, WireError
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server, add_server_options, server_of, unknown_key
from hub_jobs.source.streams import HubStream, stream_info
from hub_jobs.spark.session import run_tasks
from hub_jobs.tables import gap_notes, stream_history
from hub_jobs.tables.delta import Table, ensure_table
from hub_jobs.tables.gap_notes import GapReason
from hub_jobs.tables.hub_lake import check_lake, known_aggregates, known_lake, place_of
from hub_jobs.tables.parquet import MAX_FILE_BYTES
from hub_jobs.tables.places import Place
from hub_jobs.tables.stream_history import MessageMark, StreamHistory, differs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME: Final = "ingest"
_NOTICE_SECONDS: Final = 2.0
_DISK_SECONDS: Final = 30.0
"""Time for a sync of a slow disk."""
_MIN_RECORDS: Final = 2_000
"""Smallest number of records for a task."""
_MAX_RECORDS: Final = 500_000
_PARTS_A_CORE: Final = 4
"""Partitions per commit and core. Small commits lose less to a kill, and a stopping run ends within
a minute.
"""
_NO_STREAM: Final = 10059


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """The command line's options."""

    server: Server
    stream: str
    lake: Place


def main(argv: Sequence[str] | None = None) -> Exit:
    """Run the job and return its exit code."""
    given, metrics = _options(argv)
    job = partial(_run_each, given, metrics)
    then = [_refining(given.lake, metrics)] if given.then else []
    return run_job(job, given.every, metrics, then)


def _refining(lake: Place, metrics: JobMetrics) -> NextJob:
    from hub_jobs.refine import run as refine

    of_refine = metrics.beside("refine")

    def job(stop: Stop) -> Exit:
        return refine.run(lake, stop, of_refine) if (lake / "bronze").is_dir() else Exit.WELL

    return NextJob(job, of_refine)


def _run_each(asked: _Asked, metrics: JobMetrics, stop: Stop) -> Exit:
    """Ingest the streams in turn; an error of one does not stop others."""
    names = asked.streams or _all_aggregates(asked.server)
    streams = [
        IngestOptions(replace(asked.server, api_prefix=cell_api(name)), name, asked.lake) for name in names
    ]
    if len(streams) == 1:
        return run(streams[0], stop, metrics)
    left = takewhile(lambda _: not stop(), streams)
    return gravest(
        [
            ended(f"{_NAME} {options.stream}", partial(run, options, stop, metrics), metrics)
            for options in left
        ]
    )


def _all_aggregates(server: Server) -> list[str]:
    try:
        with Connection(server) as conn:
            return known_aggregates(conn)
    except UnknownIdentity as error:
        raise unknown_key(server) from error


def run(options: IngestOptions, stop: Stop = never, metrics: JobMetrics | None = None) -> Exit:
    """Ingest messages that were on the hub's disk at the start, commit by commit until stopped."""
    metrics = metrics or JobMetrics(_NAME)
    metrics.add_ingested(options.stream, 0, 0)
    end, hub_lake = _begin(options)
    spark: SparkSession | None = None
    gaps: list[Sequences] = []
    # It refuses a new bronze next to old readings.
    opened = stream_history.open_bronze(options.lake)
    check_lake(hub_lake, options.lake, opened)
    bronze = ensure_table(options.lake, "bronze", opened)
    while True:
        with Connection(options.server) as conn:
            info = stream_info(conn, options.stream)
            if why := take_back_unfinished(bronze, info):
                say(_NAME, f"a commit of {info.name} is taken back and read again: {why}")
                bronze = bronze.newest()
                continue
            known = stream_history.current(bronze, info, conn)
            first = first_held(conn, info.name) if known.done is None else known.done + 1
            metrics.set_lag(info.name, info.last_seq - first + 1, partial(_waits_since, conn, info, first))
        last = min(end, info.last_seq)
        if first > last or stop():
            break
        if spark is None:
            from hub_jobs.spark.session import session

            spark = session(_NAME)
        gaps += _commit_next(spark, options, bronze, info, known, (first, last), metrics, hub_lake)
        bronze = bronze.newest()
    bronze.sync()  # what the registrar purges is nowhere else
    _tell_registrar(options, info, known, bronze)
    if gaps:
        say(_NAME, f"stream {options.stream} has lost sequences {text(union(gaps))}")
        return Exit.LOSS
    return Exit.WELL


def _waits_since(conn: Connection, info: HubStream, seq: int) -> float | None:
    """Return when the hub stored a message (unix time), None if unknown."""
    with suppress(WireError):
        for columns in read_columns(conn, info.name, seq, seq, created=info.created, allow_lost=True):
            return float(columns.timestamps_ns[0]) / 1e9
    return None


def _begin(options: IngestOptions) -> tuple[int, HubLake | None]:
    """Return the last sequence on the hub's disk, and the hub's lake. Reports the hub's refusals as option
    errors.
    """
    server = options.server
    try:
        conn = Connection(server)
    except UnknownIdentity as error:
        raise unknown_key(server) from error
    with conn:
        try:
            info = stream_info(conn, options.stream)
            return info.last_seq if not info.sync_seconds else _on_disk(conn, info), known_lake(conn)
        except (Denied, SourceApiError) as error:
            if isinstance(error, SourceApiError) and error.err_code != _NO_STREAM:
                raise
            raise Denied(
                f"stream {options.stream} is not there, or this key may not read it; "
                f"the hub's aggregates are named {aggregate(0)}, {aggregate(1)}, …"
            ) from error


def _on_disk(conn: Connection, info: HubStream) -> int:
    """Return the synced end of a stream; with interval syncs only the registrar knows it."""
    asked = Committed(info.name, info.created, 0)
    try:
        answer = conn.request(committed_subject(info.name), asked.encode(), _DISK_SECONDS)
        return min(info.last_seq, parse_synced(answer, info.created))
    except (Unreachable, ContractError) as error:
        raise Unreachable(
            f"the hub's server syncs its disk each {info.sync_seconds:g} s, and only its registrar knows "
            f"what of {info.name} a power cut can still take; nothing is read until it says so: {error}"
        ) from error


def _commit_next(
    spark: SparkSession,
    options: IngestOptions,
    bronze: Table,
    info: HubStream,
    known: StreamHistory,
    wanted: Sequences,
    metrics: JobMetrics,
    hub_lake: HubLake | None,
) -> list[Sequences]:
    """Read, write and commit the next ranges; returns missing sequences."""
    parts = _parts(info, wanted, tasks_at_once(spark))
    origin = StreamOrigin(known.stream, known.created, info.source_index, info.made)
    work = [IngestPart(options.server, part, origin, options.lake) for part in parts]
    done = run_tasks(spark, ingest, work)
    files = [file for result in done for file in result.files]
    faults = [result.fault for result in done if result.fault is not None]
    if faults:
        bronze.discard(files)
        raise faults[0]
    if not _is_still(options, bronze, known, [result.end for result in done if result.end]):
        bronze.discard(files)
        say(_NAME, f"stream {options.stream} was put back to an earlier state while it was read: once more")
        return []
    gaps = union(*(result.gaps for result in done))
    if before := purged_before(options.server, bronze, known, wanted[0], gaps):
        gaps = without(gaps, before)
        say(_NAME, f"sequences {text(before)} of {options.stream} were purged before this lake began")
    last = parts[-1].last
    lost = known.history, gaps, _reason(info, gaps, hub_lake)
    offsets = {known.ingested: last, **gap_notes.offsets_of(bronze, *lost)}
    bronze.commit(files, offsets, gap_notes.notes_of(*lost))
    messages = sum(file.rows for file in files)
    metrics.add_ingested(options.stream, messages, sum(file.size for file in files))
    say(_NAME, f"{messages} messages of {options.stream} up to {last} are in bronze")
    return gaps


def _reason(info: HubStream, gaps: Sequence[Sequences], hub_lake: HubLake | None) -> GapReason:
    """Return why sequences are gone; the hub purged those reported by a lake before this one was adopted."""
    created, done = hub_lake.left.get(info.name, ("", 0)) if hub_lake else ("", 0)
    if gaps and created == info.created and gaps[-1][1] <= done:
        return GapReason.OTHER_LAKE
    return gap_notes.reason_by_limits(info)


def _is_still(
    options: IngestOptions, bronze: Table, known: StreamHistory, ends: Sequence[MessageMark]
) -> bool:
    """Tell whether the stream still has the planned history and each part's last message.

    Otherwise the parts may mix histories, and the next run could not detect it.
    """
    with Connection(options.server) as conn:
        info = stream_info(conn, options.stream)
        now = stream_history.current(bronze, info, conn)
        return now.history == known.history and not any(differs(conn, info, end) for end in ends)


def _parts(info: HubStream, wanted: Sequences, cores: int) -> list[Range]:
    """Return the ranges of the next commit: about a file each, and one per core when possible."""
    first, last = wanted
    average = info.bytes // max(info.messages, 1) + 1
    most = max(1, min(_MAX_RECORDS, MAX_FILE_BYTES // average))
    last = min(last, first + most * _PARTS_A_CORE * cores - 1)
    wanted_parts = max(1, min(cores, (last - first + 1) // _MIN_RECORDS))
    return split([Range(info.name, info.created, first, last)], wanted_parts, most)


def _tell_registrar(options: IngestOptions, info: HubStream, known: StreamHistory, bronze: Table) -> None:
    """Report the committed end with its last message. Raises `OtherLakeError` if the hub has another lake
    now.
    """
    if known.done is None:
        return
    arrived = known.end.arrived if known.end else 0
    place = place_of(options.lake)
    committed = Committed(info.name, info.created, known.done, arrived, bronze.id, place)
    try:
        with Connection(options.server) as conn:
            row = json.loads(conn.request(committed_subject(info.name), committed.encode(), _NOTICE_SECONDS))
            if "refused" not in row:
                return
            hub_lake = known_lake(conn)
    except (WireError, ValueError) as error:
        say(_NAME, f"the registrar does not know yet what it may purge; the next run tells it: {error}")
        return
    check_lake(hub_lake, options.lake, bronze.newest())
    say(_NAME, f"the registrar purges nothing: {row['refused']}")


class _Asked(NamedTuple):
    """Command line options: these streams, all without any; `every` in seconds, None for once."""

    server: Server
    streams: list[str]
    lake: Place
    every: float | None
    then: bool


def _options(argv: Sequence[str] | None) -> tuple[_Asked, JobMetrics]:
    parser = job_parser(_NAME, "Bring a stream of the hub into `bronze`.", repeats=True)
    add_server_options(parser)
    parser.add_argument(
        "--stream",
        action="append",
        help="an aggregate; may be given several times (default: all)",
    )
    parser.add_argument(
        "--then",
        choices=["refine"],
        help="run this job after each run, in the same process and Spark session, instead of one of its own",
    )
    given = parser.parse_args(argv)
    server = server_of(parser, given)
    assert server is not None  # it is required
    asked = _Asked(server, given.stream or [], given.lake, given.every, bool(given.then))
    return asked, metrics_of(_NAME, parser, given)
