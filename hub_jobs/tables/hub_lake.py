"""Checks that a lake is the hub's own lake and not an older copy.

The registrar keeps the record (`agent.contract.lake`). Jobs read it from the hub's server, so they need no
agent.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.contract import AGGREGATES, FLEET_BUCKET, HUB_LAKE, HubLake, aggregate, other_lake, stored_lake
from hub_jobs.source.protocol import Unreachable
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table, TableError
from hub_jobs.tables.places import Place

if TYPE_CHECKING:
    from hub_jobs.source.connection import Connection

_DRAWS: Final = 32
"""Repeated reads, each from a random server of the cluster.

A server with a damaged block lacks its records
(`findings/nats-damaged-block-is-not-fetched-from-replicas.sh`). With three servers, all reads hit it
once in 400,000.
"""


class OtherLakeError(TableError):
    """The lake is not the hub's, or is an older state of it; writing for the hub is refused."""


def newest_record(conn: Connection, key: str) -> bytes:
    """Return the newest record of the fleet's bucket under a key, b"" when missing.

    Raises as `Connection.request`; Unreachable also when the bucket is missing.
    """
    subject = f"$JS.API.DIRECT.GET.KV_{FLEET_BUCKET}.$KV.{FLEET_BUCKET}.{key}"
    for _ in range(_DRAWS if conn.clustered else 1):
        if data := conn.request(subject, b""):
            return data
    return b""


def known_lake(conn: Connection) -> HubLake | None:
    """Return the hub's lake, None when no registrar recorded it. Raises Denied."""
    try:
        return stored_lake(newest_record(conn, HUB_LAKE))
    except Unreachable:
        return None


def known_aggregates(conn: Connection) -> list[str]:
    """The names of all aggregates of the hub, as its registrar keeps them; of a hub that has never had a
    registrar the first. Raises Denied."""
    try:
        names = newest_record(conn, AGGREGATES).decode(errors="replace").split()
    except Unreachable:
        names = []
    return names or [aggregate(0)]


def place_of(lake: Place) -> str:
    """Return the lake's place, valid on other machines too."""
    return f"{lake} on {socket.gethostname()}" if isinstance(lake, Path) else str(lake)


def check_lake(known: HubLake | None, lake: Place, bronze: Table | None) -> None:
    """Raise `OtherLakeError` when `why_not_hubs` returns a reason."""
    if why := why_not_hubs(known, lake, bronze):
        raise OtherLakeError(f"nothing was written: {why}")


def why_not_hubs(known: HubLake | None, lake: Place, bronze: Table | None) -> str | None:
    """Return why a lake is not the hub's or lost reported data, None when it is fine.

    `bronze` is None for a new lake. Open it after reading the record, because reports may arrive between.
    """
    why = other_lake(known, "" if bronze is None else bronze.id, str(lake))
    if why or known is None or bronze is None:
        return why
    lacks = [
        f"{stream} up to {done}, and this one up to {here}"
        for stream, (created, done) in sorted(known.streams.items())
        if (here := stream_history.ingested_to(bronze, stream, created)) < done
    ]
    if not lacks:
        return None
    return (
        f"the lake at {lake} is an older state of {known}, restored from a copy or a copy beside it: that "
        f"reported {'; '.join(lacks)}. Give --lake the newest state. If this is the newest that there is: "
        f"petiole lake adopt {known.id} --instead-of {known.id}, at the hub; ingest then reads what the hub "
        "still has, and names the rest as lost"
    )
