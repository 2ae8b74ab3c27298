"""Reads a fixed stream range completely or raises.

A range is complete when the consumer passed its last sequence, consumer sequences have no hole, and the
stream reports all missing sequences as deleted. It does not reconnect; reading again gives the same rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hub_jobs.source.connection import Connection
from hub_jobs.source.copies import open_copies
from hub_jobs.source.protocol import Unreachable
from hub_jobs.source.range_reader import RangeReader
from hub_jobs.source.streams import Columns, leader_state


def read_columns(
    conn: Connection,
    stream: str,
    first: int,
    last: int,
    *,
    filter_subjects: Sequence[str] = (),
    max_bytes: int = 8 << 20,
    created: str | None = None,
    allow_lost: bool = False,
    ask_copies: bool = False,
) -> Iterator[Columns]:
    """Yield records `first` to `last` in order, as nonempty columns.

    At most `max_bytes` are in flight (or one larger message), none while the caller holds records for up to
    two minutes. Sequences that the stream reports as deleted are skipped. `created` is the planned history
    (`StreamInfo.created`). `allow_lost` skips purged and expired records. `ask_copies` checks missing
    sequences on all replicas, without subject filters and for streams without limits.

    Raises RangeLost for lost records or another stream. Raises Unreachable when the server stops, stalls or a
    replica has missing records or is unavailable. Raises ApiError when the consumer is refused, Denied when
    it is forbidden.
    """
    if first > last:
        return
    pull_bytes = max(max_bytes // 2, 1)
    reader = RangeReader(conn, stream, first, last, list(filter_subjects), pull_bytes, allow_lost)
    try:
        reader.open(created)
        yield from reader.read()
        if reader.gaps and not filter_subjects:
            copies = _check_gaps(conn, stream, reader)
            if ask_copies:
                _check_copies(conn, stream, reader, copies, pull_bytes)
    finally:
        reader.close()


def _check_gaps(conn: Connection, stream: str, reader: RangeReader) -> Mapping[str, bool]:
    """Check that the stream reports all missing sequences as deleted; returns whether each replica's server
    is online.
    """
    first_seq, deleted, copies = leader_state(conn, stream)
    for low, high in reader.gaps:
        reader.check_first(first_seq, low)
        low = max(low, first_seq)
        if low <= high and bisect_right(deleted, high) - bisect_left(deleted, low) != high - low + 1:
            raise Unreachable(f"stream {stream} has records in {low} to {high} and did not deliver them")
    return copies


def _check_copies(
    conn: Connection, stream: str, reader: RangeReader, copies: Mapping[str, bool], pull_bytes: int
) -> None:
    """Raise when a replica has a missing record or can't be asked."""
    lows, highs = np.array(reader.gaps).T
    first, last = int(lows[0]), int(highs[-1])
    lacking = f"stream {stream}: {reader.server} lacks records in {first} to {last}"
    others = {name: online for name, online in copies.items() if name != reader.server}
    for copy in open_copies(conn, stream, first, last, others, lacking, pull_bytes):
        for columns in copy.read():
            gap = np.searchsorted(lows, columns.seqs, side="right") - 1
            if (columns.seqs <= highs[gap]).any():
                raise Unreachable(
                    f"{lacking} that {copy.server} has; if this stays, start the server whose disk "
                    "fails with an empty store"
                )
