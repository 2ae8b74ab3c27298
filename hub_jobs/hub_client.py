"""The hub: the options that say where it is, and what an audit asks of it. It changes nothing
there."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from agent.contract import FLEET_BUCKET, ContractError, FleetRecord, parse_fleet_record
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import ApiError, Denied, UnknownIdentity, Unreachable
from hub_jobs.source.server import Server
from hub_jobs.source.streams import StreamInfo, stream_info

_NO_STREAM: Final = 404


@dataclass(slots=True)
class HubClient:
    """What the hub said: its streams, and of every leaf that they are sourced from its newest record.
    `faults` are sentences about what it did not say."""

    streams: dict[str, StreamInfo] = field(default_factory=dict)
    leaves: dict[str, FleetRecord] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser, *, required: bool = True, why: str = "") -> None:
    """The options that say where the hub is and where the key to it lies; `why` is what it is asked for."""
    text = "nats://host:4222, several with commas between" + (f": {why}" if why else "")
    parser.add_argument("--server", required=required, help=text)
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument("--seed-file", help="path of the NKey seed of the jobs")
    secret.add_argument("--creds-file", help="path of a .creds file")
    secret.add_argument("--secret-env", help="name of an environment variable with a seed or a .creds file")
    parser.add_argument("--ca-file", help="the authorities to trust instead of the system's")


def server_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Server | None:
    """The server that was given, None without one. Ends the program when an option is wrong."""
    keys = {name: getattr(given, name) for name in ("seed_file", "creds_file", "secret_env", "ca_file")}
    if given.server is None:
        if any(value is not None for value in keys.values()):
            parser.error("a key was given and no --server to show it to")
        return None
    try:
        return Server(given.server, **keys)
    except ValueError as error:
        parser.error(str(error))


def unknown_key(server: Server) -> Denied:
    """What to say when the hub does not know the key that it was shown."""
    key = server.seed_file or server.creds_file or server.secret_env or "none was given"
    return Denied(f"the hub does not know this key ({key}); it is keys/jobs.nk of the hub's agent")


def ask(server: Server, streams: Iterable[str]) -> HubClient:
    """What the hub says of these streams and of the leaves in them; a stream that is not there is left out.
    Raises as `Connection`."""
    hub = HubClient()
    try:
        asking = Connection(server)
    except UnknownIdentity as error:
        raise unknown_key(server) from error
    with asking as conn:
        for name in streams:
            try:
                hub.streams[name] = stream_info(conn, name)
            except ApiError as error:
                if error.code != _NO_STREAM:
                    raise
    domains = {domain for info in hub.streams.values() for domain in info.source_index.values()}
    try:
        # A connection of its own: what is refused ends it.
        with Connection(server) as conn:
            for domain in sorted(domains):
                _look_up(conn, domain, hub)
    except Denied:
        hub.faults.append(
            "this key may not read what the leaves announced, so what is on the way is not known: "
            "start the hub's server with the configuration of this version, and give the key of the jobs"
        )
    except Unreachable as error:
        hub.faults.append(f"the hub has its streams, and no records of the leaves, or not all: {error}")
    return hub


def _look_up(conn: Connection, domain: str, hub: HubClient) -> None:
    subject = f"DIRECT.GET.KV_{FLEET_BUCKET}.$KV.{FLEET_BUCKET}.{domain}"
    data = conn.request(f"{conn.server.api_prefix}.{subject}", b"")
    if not data:
        return
    try:
        hub.leaves[domain] = parse_fleet_record(data)
    except ContractError as error:
        hub.faults.append(f"the hub's record of {domain} can't be used: {error}")
