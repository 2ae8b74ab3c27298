"""Lakes that are filled and refined without Spark: its tasks, called here, and the commits that the jobs make
of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hub_jobs.ingest import bronze as ingest_task
from hub_jobs.ingest.bronze import StreamOrigin
from hub_jobs.refine import plan, task
from hub_jobs.refine.dedup import EarlierRows, Wanted
from hub_jobs.source.connection import Connection
from hub_jobs.source.plan import Range
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from hub_jobs.tables import seen, stream_history
from hub_jobs.tables.delta import ensure_table


def refine_all(lake: Path) -> None:
    """Bring all of bronze into readings and quarantine, as `refine` does but for corrections of clocks."""
    while True:
        bronze = ensure_table(lake, "bronze")
        tables = plan.RefineTables(bronze, ensure_table(lake, "readings"), ensure_table(lake, "quarantine"))
        planned = plan.plan(tables)
        if planned is None:
            return
        planned = plan.bounded(planned, cores=1)
        known = seen.load(lake, bronze, planned.before)
        decision = plan.decide(bronze, planned, known)
        named = plan.quarantined(tables.quarantine, planned)
        done = [task.refine(part) for part in plan.parts(lake, planned, decision, named, {}, 1)]
        quarantine = [file for part in done for file in part.quarantine]
        if quarantine or not planned.resumed:
            tables.quarantine.commit(quarantine, planned.offsets)
        tables.readings.commit([file for part in done for file in part.readings], planned.offsets)
        known.save(lake, planned.after)


def ingest_all(lake: Path, server: Server, stream: str) -> None:
    """Bring what a stream holds into bronze."""
    bronze = ensure_table(lake, "bronze")
    with Connection(server) as conn:
        info = stream_info(conn, stream)
        known = stream_history.current(bronze, info, conn)
    wanted = Range(info.name, info.created, (known.done or 0) + 1, info.last_seq)
    origin = StreamOrigin(known.stream, known.created, info.source_index)
    done = ingest_task.ingest(ingest_task.IngestPart(server, wanted, origin, lake))
    assert done.fault is None
    bronze.commit(done.files, {known.ingested: info.last_seq})


def earlier(rows: Iterable[Mapping[str, Any]], wanted: Wanted) -> EarlierRows:
    """What a dictionary says of the rows of bronze under wanted numbers, `rows` being all that were
    refined."""
    kind, columns, number = (
        ("batch", ("domain", "class", "run"), "n")
        if wanted.are_batches
        else ("source", ("source_stream", "source_identity"), "source_seq")
    )
    places = {
        (wanted.names[code], wanted_number): place
        for place, (code, wanted_number) in enumerate(
            zip(wanted.numbers.codes.tolist(), wanted.numbers.numbers.tolist(), strict=True)
        )
    }
    named = [("/".join([kind, *(str(row[name]) for name in columns)]), row) for row in rows]
    found = [
        (places[name, row[number]], row["digest"]) for name, row in named if (name, row[number]) in places
    ]
    digests = pa.array([digest for _, digest in found], pa.binary())
    return EarlierRows(np.array([place for place, _ in found], dtype=np.int64), digests)
