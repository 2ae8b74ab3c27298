"""Finds where a new lake begins in a stream."""

from __future__ import annotations

from collections.abc import Sequence

from agent.contract.ranges import Range as Sequences
from hub_jobs.source.connection import Connection
from hub_jobs.source.copies import first_held
from hub_jobs.source.server import Server
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table
from hub_jobs.tables.stream_history import StreamHistory


def purged_before(
    server: Server, bronze: Table, known: StreamHistory, first: int, gaps: Sequence[Sequences]
) -> list[Sequences]:
    """Return the gaps that another lake's purge made between plan and read; the new lake begins after them.

    Gaps after a read message, or in a lake that held the stream before, are losses. Raises as `first_held`.
    """
    if known.done is not None or not gaps or gaps[0][0] != first:
        return []
    if any(history.stream == known.stream for history in stream_history.all_of(bronze)):
        return []
    with Connection(server) as conn:
        last = min(gaps[0][1], first_held(conn, known.stream) - 1)
    return [(first, last)] if first <= last else []
