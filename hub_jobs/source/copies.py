"""Asks the copies of a stream on the servers of a cluster one by one. A server whose disk has damaged a block
calls its messages deleted, or begins after them, as leader for all, and does not fetch them from the other
servers (`findings/nats-damaged-block-is-not-fetched-from-replicas.sh`; this module may go once it does)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Unreachable
from hub_jobs.source.range_reader import RangeReader
from hub_jobs.source.streams import leader_state

_DRAWS: Final = 64
"""Consumers by which the copies are asked, each given to a server by chance. Of three servers one is given
none of so many once in 10^11."""
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
    """An open reader of the sequences `first` to `last` on each of these servers, closed when the next one is
    asked for. `copies` say of each whether it is online, `lacking` is what the error says first.

    Raises Unreachable where a server is offline or was given no consumer, and what `RangeReader.open` does.
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
    """The lowest first sequence of all copies, 1 of a stream that never had a message.

    Raises as `open_copies`, and as `Connection.api`.
    """
    state = leader_state(conn, stream)
    if state.first_seq <= 1:
        return 1
    lacking = f"stream {stream}: its leader lacks records in 1 to {state.first_seq - 1}"
    copies = open_copies(conn, stream, 1, state.first_seq - 1, state.copies, lacking)
    return min([state.first_seq, *(copy.start for copy in copies)])
