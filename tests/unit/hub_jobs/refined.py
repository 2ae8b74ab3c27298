"""Lakes that are filled and refined without Spark: its tasks, called here, and the commits that the jobs make
of them."""

from __future__ import annotations

from pathlib import Path

from hub_jobs import incarnations, tasks
from hub_jobs.source.plan import Range
from hub_jobs.source.wire import Connection, Server, stream_info
from hub_jobs.tables import ensure_table
from hub_jobs.tables.scan import file_paths
from hub_jobs.transforms.bronze import Origin


def refine_all(lake: Path) -> None:
    """Bring all of bronze into readings and quarantine; no message may come twice."""
    bronze = ensure_table(lake, "bronze")
    for one in incarnations.all_of(bronze):
        readings, quarantine = ensure_table(lake, "readings"), ensure_table(lake, "quarantine")
        after, to = readings.offset(one.refined) or 0, one.done or 0
        paths = file_paths(bronze, one.rows(after, to))
        done = tasks.refine(tasks.RefinePart(lake, paths, after, to))
        quarantine.commit(done.quarantine, {one.refined: to})
        readings.commit(done.readings, {one.refined: to})


def ingest_all(lake: Path, server: Server, stream: str) -> None:
    """Bring what a stream holds into bronze."""
    bronze = ensure_table(lake, "bronze")
    with Connection(server) as conn:
        info = stream_info(conn, stream)
        known = incarnations.current(bronze, info, conn)
    wanted = Range(info.name, info.created, (known.done or 0) + 1, info.last_seq)
    origin = Origin(known.stream, known.created, info.source_index)
    done = tasks.ingest(tasks.IngestPart(server, wanted, origin, lake))
    assert done.fault is None
    bronze.commit(done.files, {known.ingested: info.last_seq})
