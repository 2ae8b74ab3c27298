"""What an executor does for `ingest`: it reads a range of a stream into files of `bronze`, and names them to
the driver, which commits all or none.

A message that is not what it should be is a row too: ingest rejects nothing, and what is unknown of a
message stays null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from agent.contract.ranges import Range as Sequences
from agent.contract.ranges import union, without
from hub_jobs.ingest.identity import as_first_created, identities
from hub_jobs.source.connection import Connection
from hub_jobs.source.plan import Range
from hub_jobs.source.protocol import WireError
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from hub_jobs.source.streams import Columns
from hub_jobs.tables.grouping import coded_column
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import runs_of
from hub_jobs.tables.schemas import BRONZE, TIME, digests
from hub_jobs.tables.stream_history import MessageMark, last_of


@dataclass(frozen=True, slots=True)
class IngestPart:
    """A range of a stream, to be read as `origin`. `server` names where its secret lies and holds none."""

    server: Server
    range: Range
    origin: StreamOrigin
    lake: Place


@dataclass(frozen=True, slots=True)
class Ingested:
    """Files of bronze, the sequences of the range that the stream no longer has, and the last message that
    was read. `fault` is what kept the task from reading: not for Spark to try again at once, but for the next
    run."""

    files: list[PartFile] = field(default_factory=list)
    gaps: list[Sequences] = field(default_factory=list)
    end: MessageMark | None = None
    fault: WireError | None = None


def ingest(part: IngestPart) -> Ingested:
    """Read a range and write it as rows of bronze."""
    wanted = part.range
    read: list[Sequences] = []
    end: MessageMark | None = None
    try:
        with Connection(part.server) as conn, PartWriter(part.lake, "bronze") as writer:
            for columns in read_columns(
                conn,
                wanted.stream,
                wanted.first,
                wanted.last,
                created=wanted.created,
                allow_lost=True,
                ask_copies=True,
            ):
                writer.write(bronze_rows(columns, part.origin))
                read = union(read, runs_of(columns.seqs))
                end = last_of(columns)
    except WireError as error:
        return Ingested(fault=error)
    return Ingested(writer.files, without([(wanted.first, wanted.last)], read), end)


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """The history of the hub's stream that messages come from, the domain of each of its sources, and under
    which identity a source's stream is known that was created anew (`StreamInfo.made`)."""

    stream: str
    created: str
    domains: Mapping[str, str]
    made: Mapping[tuple[str, str], str] = field(default_factory=dict)


def bronze_rows(columns: Columns, origin: StreamOrigin) -> pa.Table:
    """One row a message, in the order of the messages; text that many rows share is coded."""
    same = np.zeros(len(columns.seqs), dtype=np.int32)
    subjects = _texts(columns.subjects).dictionary_encode()
    arrays = {
        "stream": coded_column(same, [origin.stream]),
        "created": coded_column(same, [origin.created]),
        "seq": pa.array(columns.seqs),
        "arrived": pa.array(columns.timestamps_ns // 1000).cast(TIME),
        "subject": subjects,
        "headers": columns.headers,
        "payload": columns.payloads,
        "digest": digests(columns.payloads),
        **as_first_created(identities(columns.headers, subjects, origin.domains), origin.made),
    }
    return pa.table(arrays).select(BRONZE.names)


def _texts(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [value.decode(errors="backslashreplace") for value in values.to_pylist()], pa.string()
        )
