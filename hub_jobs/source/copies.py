"""Queries the replicas of a stream one by one.

A leader with a damaged disk block reports its messages as deleted and does not fetch them from replicas
(`findings/nats-damaged-block-is-not-fetched-from-replicas.sh`; remove this module when it does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Unreachable
from hub_jobs.source.range_reader import RangeReader
from hub_jobs.source.streams import leader_state

_DRAWS: Final = 64
"""Consumers placed at random; one of three servers is missed once in 10^11."""
_PULL_BYTES: Final = 1 << 20


def open_copies(
    conn: Connection,
    stream: str,
    first: int,
    last: int,
    copies: Mapping[str, bool],
    lacking: str,
    pull_bytes: int = _PULL_BYTES,
) -> Iterator[RangeReader]:
    """Yield an open reader of the range on each of these servers; the next step closes it.

    `copies` tells which servers are online; `lacking` begins the error text. Raises Unreachable for an
    offline or missed server, and as `RangeReader.open`.
    """
    unasked = set(copies)
    if offline := [name for name in unasked if not copies[name]]:
        raise Unreachable(f"{lacking}; {min(offline)}, which may have them, is offline: start it")
    for _ in range(_DRAWS):
        if not unasked:
            return
        copy = RangeReader(conn, stream, first, last, [], pull_bytes, allow_lost=True)
        try:
            copy.open(None)
            if copy.server in unasked:
                unasked.remove(copy.server)
                yield copy
        finally:
            copy.close()
    if unasked:
        raise Unreachable(f"{lacking}; {min(unasked)}, which may have them, could not be asked")


def first_held(conn: Connection, stream: str) -> int:
    """Return the lowest first sequence of all replicas, 1 for a stream that never had messages.

    Raises as `open_copies` and `Connection.api`.
    """
    state = leader_state(conn, stream)
    if state.first_seq <= 1:
        return 1
    lacking = f"stream {stream}: its leader lacks records in 1 to {state.first_seq - 1}"
    copies = open_copies(conn, stream, 1, state.first_seq - 1, state.copies, lacking)
    return min([state.first_seq, *(copy.start for copy in copies)])
