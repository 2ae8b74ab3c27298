"""Whether a lake is the one behind which the hub purges, and in its newest state.

The record is the registrar's (`agent.contract.lake`). The jobs read it from the hub's server, so that it is
known where no agent runs."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.contract import FLEET_BUCKET, HUB_LAKE, HubLake, other_lake, stored_lake
from hub_jobs.source.protocol import Unreachable
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import Table, TableError
from hub_jobs.tables.places import Place

if TYPE_CHECKING:
    from hub_jobs.source.connection import Connection

_DRAWS: Final = 32
"""Questions that are each answered by a server of a cluster by chance. One whose disk has damaged a block
lacks the records in it (seen on nats-server 2.15.1); of three servers one answers none of so many once in
400,000."""


class OtherLakeError(TableError):
    """A lake is not the hub's, or is an older state of it: nothing may be written there for the hub."""


def newest_record(conn: Connection, key: str) -> bytes:
    """The newest record of the fleet's bucket under a key, empty where there is none. Raises as
    `Connection.request`: Unreachable also where there is no bucket."""
    subject = f"{conn.server.api_prefix}.DIRECT.GET.KV_{FLEET_BUCKET}.$KV.{FLEET_BUCKET}.{key}"
    for _ in range(_DRAWS if conn.clustered else 1):
        if data := conn.request(subject, b""):
            return data
    return b""


def known_lake(conn: Connection) -> HubLake | None:
    """The hub's lake, None of a hub that knows none, or has never had a registrar. Raises Denied."""
    try:
        return stored_lake(newest_record(conn, HUB_LAKE))
    except Unreachable:
        return None


def place_of(lake: Place) -> str:
    """Where a lake is, for people on other machines too."""
    return f"{lake} on {socket.gethostname()}" if isinstance(lake, Path) else str(lake)


def check_lake(known: HubLake | None, lake: Place, bronze: Table | None) -> None:
    """Raise `OtherLakeError` where `why_not_hubs` has a reason."""
    if why := why_not_hubs(known, lake, bronze):
        raise OtherLakeError(f"nothing was written: {why}")


def why_not_hubs(known: HubLake | None, lake: Place, bronze: Table | None) -> str | None:
    """Why a lake, with no `bronze` a new one, is not the hub's, or that it holds less than that has reported;
    None where it is. `bronze` has to be opened after the record was read: reports may come between."""
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
