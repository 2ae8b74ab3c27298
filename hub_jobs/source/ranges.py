"""Reading a fixed range of a stream through a consumer of its own, whole or not at all.

A range is complete when the server has shown that its consumer passed the last sequence, its consumer
sequences came without a hole, and every sequence that did not come is one the stream says it no longer has.
Everything else raises. It does not reconnect: the range is fixed, so reading it again gives the same rows.
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
    """The records with sequences `first` to `last`, both included, in order, by column. None of them is
    empty.

    At most `max_bytes` bytes are on their way (a single larger message is taken nevertheless), and none while
    the caller holds some: it may pause for two minutes. Deleted sequences are passed over when the stream
    says that they are. `created` is the history (`StreamInfo.created`) the range was planned on;
    `allow_lost` passes over what was purged or expired. `ask_copies` takes nothing for gone that a copy on
    another server has; it counts where no subjects are filtered and the stream drops nothing by itself.

    Raises RangeLost when rows are gone from the start, the end or under the reader, or the stream is another
    one; Unreachable when the server stops, restarts or stalls, or a copy has what is missing or can't be
    asked; ApiError when it refuses the consumer; Denied when this identity may not make one. It never ends
    early without raising.
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
    """Check that every sequence that did not come is one the stream says it no longer has. Returns the
    servers that have copies of the stream, and whether each is online."""
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
    """Raise where a copy has a record of a gap, or one can't be asked."""
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
