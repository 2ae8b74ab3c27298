"""What the jobs read of a stream, message by message; they take it by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hub_jobs.source.connection import Connection
from hub_jobs.source.ranges import read_columns
from hub_jobs.source.streams import Columns


class StreamRecord(NamedTuple):
    """One message as it lies in the stream; `timestamp_ns` is when the stream took it, in ns since 1970."""

    subject: bytes
    headers: bytes
    payload: bytes
    seq: int
    timestamp_ns: int


def read_range(
    conn: Connection, stream: str, first: int, last: int, **options: Any
) -> Iterator[list[StreamRecord]]:
    """The records of a range in lists, by row: `read_columns`, whose options and errors it has."""
    for found in read_columns(conn, stream, first, last, **options):
        columns = found.subjects, found.headers, found.payloads, found.seqs, found.timestamps_ns
        yield list(map(StreamRecord, *(column.tolist() for column in columns)))


def columns_of(records: Iterable[StreamRecord]) -> Columns:
    """The same by column."""
    subjects, headers, payloads, seqs, timestamps = zip(*records, strict=True)
    texts = (pa.array(values, pa.binary()) for values in (subjects, headers, payloads))
    return Columns(*texts, *(np.array(values, dtype=np.int64) for values in (seqs, timestamps)))
