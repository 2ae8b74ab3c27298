"""Reads a stream range into files of `bronze` on an executor; the driver commits all files or none.

Malformed messages are rows too: ingest rejects nothing, and unknown fields are null.
"""

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
    """A stream range to read as `origin`. `server` references its secret without containing it."""

    server: Server
    range: Range
    origin: StreamOrigin
    lake: Place


@dataclass(frozen=True, slots=True)
class Ingested:
    """Files of bronze, missing sequences and the last message. `fault` stops the task until the next run."""

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
    """The hub stream's history, the domain of each source, and the identity of recreated sources
    (`StreamInfo.made`).
    """

    stream: str
    created: str
    domains: Mapping[str, str]
    made: Mapping[tuple[str, str], str] = field(default_factory=dict)


def bronze_rows(columns: Columns, origin: StreamOrigin) -> pa.Table:
    """Return one row per message in order, with shared texts coded."""
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
