"""What an executor does for `ingest`: it reads a range of a stream into files of `bronze`, and names them to
the driver, which commits all or none."""

from __future__ import annotations

from dataclasses import dataclass, field

from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.source.plan import Range
from hub_jobs.source.wire import Connection, Server, WireError, read_columns
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import Range as Numbers
from hub_jobs.tables.ranges import union, without


@dataclass(frozen=True, slots=True)
class IngestPart:
    """A range of a stream, to be read as `origin`. `server` names where its secret lies and holds none."""

    server: Server
    range: Range
    origin: StreamOrigin
    lake: Place


@dataclass(frozen=True, slots=True)
class Ingested:
    """Files of bronze, and the sequences of the range that the stream no longer has. `fault` is what kept the
    task from reading: not for Spark to try again at once, but for the next run."""

    files: list[PartFile] = field(default_factory=list)
    gaps: list[Numbers] = field(default_factory=list)
    fault: WireError | None = None


def ingest(part: IngestPart) -> Ingested:
    """Read a range and write it as rows of bronze."""
    wanted = part.range
    read: list[Numbers] = []
    try:
        with Connection(part.server) as conn, PartWriter(part.lake, "bronze") as writer:
            for columns in read_columns(
                conn, wanted.stream, wanted.first, wanted.last, created=wanted.created, allow_lost=True
            ):
                writer.write(bronze_rows(columns, part.origin))
                read = union(read, _held(columns.seqs))
    except WireError as error:
        return Ingested(fault=error)
    return Ingested(writer.files, without([(wanted.first, wanted.last)], read))


def _held(seqs: list[int]) -> list[Numbers]:
    if seqs[-1] - seqs[0] + 1 == len(seqs):
        return [(seqs[0], seqs[-1])]
    return union((seq, seq) for seq in seqs)
