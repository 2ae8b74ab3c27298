"""What an executor does for `ingest`: it reads a range of a stream into files of `bronze`, and names them to
the driver, which commits all or none.

A message that is not what it should be is a row too: ingest rejects nothing, and what is unknown of a
message stays null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa

from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    MAX_INT,
    MAX_UNPACKED_BYTES,
    ContractError,
    Subject,
    parse_message_id,
    parse_subject,
)
from hub_jobs.source.connection import Connection
from hub_jobs.source.plan import Range
from hub_jobs.source.protocol import WireError, header
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.server import Server
from hub_jobs.source.streams import SOURCE_HEADER, Columns, parse_source
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.ranges import Range as Numbers
from hub_jobs.tables.ranges import union, without
from hub_jobs.tables.schemas import BRONZE, TIME, digest

_COUNT_DIGITS: Final = 18
_SUBJECTS_KNOWN: Final = 65_536


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


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """The history of the hub's stream that messages come from, and the domain of each of its sources."""

    stream: str
    created: str
    domains: Mapping[str, str]


def bronze_rows(columns: Columns, origin: StreamOrigin) -> pa.Table:
    """One row a message, in the order of the messages."""
    size = len(columns.seqs)
    subjects = [subject.decode(errors="backslashreplace") for subject in columns.subjects]
    ids = [_text(header(block, H_MESSAGE_ID.encode())) for block in columns.headers]
    sources = [_source(block, origin.domains) for block in columns.headers]
    batches = [
        _batch(subject, source.domain, ident, headers)
        for subject, source, ident, headers in zip(subjects, sources, ids, columns.headers, strict=True)
    ]
    arrived = pa.array([stamp // 1000 for stamp in columns.timestamps_ns], pa.int64()).cast(TIME)
    arrays = {
        "stream": pa.repeat(pa.scalar(origin.stream, pa.string()), size),
        "created": pa.repeat(pa.scalar(origin.created, pa.string()), size),
        "seq": columns.seqs,
        "arrived": arrived,
        "subject": subjects,
        "headers": columns.headers,
        "payload": columns.payloads,
        "digest": [digest(payload) for payload in columns.payloads],
        "domain": [origin_.domain for origin_ in sources],
        "source_stream": [origin_.stream for origin_ in sources],
        "source_identity": [origin_.identity for origin_ in sources],
        "source_seq": [origin_.seq for origin_ in sources],
        "message_id": ids,
        "class": [batch.cls for batch in batches],
        "run": [batch.run for batch in batches],
        "n": [batch.n for batch in batches],
        "count": [batch.count for batch in batches],
    }
    return pa.table(arrays, schema=BRONZE)


@dataclass(frozen=True, slots=True)
class _Source:
    domain: str | None = None
    stream: str | None = None
    identity: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    cls: str | None = None
    run: str | None = None
    n: int | None = None
    count: int | None = None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _source(headers: bytes, domains: Mapping[str, str]) -> _Source:
    value = header(headers, SOURCE_HEADER)
    if value is None:
        return _Source()
    try:
        key = parse_source(value)
    except ValueError:
        return _Source()
    if key.seq > MAX_INT:
        return _Source()
    return _Source(domains.get(key.origin), key.stream, key.identity, key.seq)


def _batch(subject: str, domain: str | None, ident: str | None, headers: bytes) -> _Batch:
    """The identity of a batch, and only that of one whose subject, source and message id agree."""
    parsed = _subject(subject)
    if parsed is None or parsed.domain != domain:
        return _Batch()
    if parsed.kind not in ("batch", "dead") or ident is None:
        return _Batch(parsed.cls)
    try:
        message = parse_message_id(ident)
    except ContractError:
        return _Batch(parsed.cls)
    if message.cls != parsed.cls:
        return _Batch(parsed.cls)
    return _Batch(parsed.cls, message.run, message.n, _count(header(headers, H_COUNT.encode())))


@lru_cache(_SUBJECTS_KNOWN)
def _subject(subject: str) -> Subject | None:
    try:
        return parse_subject(subject)
    except ContractError:
        return None


def _count(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > _COUNT_DIGITS:
        return None
    # A line has a byte at least; sums of what lies larger would pass what a column holds.
    return count if (count := int(value)) <= MAX_UNPACKED_BYTES else None
