"""Three plain servers in a cluster with one stream, of which a copy may be damaged."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent.demo.loopback import free_port
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import Unreachable, WireError
from hub_jobs.source.server import Server
from tests.harness.stream_records import read_range
from tests.harness.wait import wait_for
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_stream

KEPT = [*range(1, 195), 300]
"""What is not deleted; a block holds about 95 messages, fewer than are."""
_CLUSTER = """
server_name: {name}
cluster {{ name: hub, listen: "127.0.0.1:{port}", routes: [{routes}] }}
"""


class PlainCluster:
    """Three servers, and the stream S."""

    def __init__(self, directory: Path) -> None:
        ports = {name: free_port() for name in "abc"}
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports.values())
        self.directory = directory
        self.servers = {
            name: PlainServer(directory / name, _CLUSTER.format(name=name, port=port, routes=routes))
            for name, port in ports.items()
        }

    @property
    def urls(self) -> str:
        """All servers, as the jobs are given them."""
        return ",".join(server.url for server in self.servers.values())

    def connect(self) -> Connection:
        return Connection(Server(self.urls))

    def info(self) -> dict[str, Any]:
        """What the stream's leader says of it, with its name in `cluster`, nothing while there is none."""
        try:
            with self.connect() as conn:
                return conn.api("STREAM.INFO.S")
        except WireError:
            return {"cluster": {}, "state": {}}

    def replicas(self, key: str) -> dict[str, bool]:
        return {each["name"]: bool(each.get(key)) for each in self.info()["cluster"].get("replicas") or []}

    def whole(self) -> bool:
        return [*self.replicas("current").values()] == [True, True]

    def read(self, **options: Any) -> list[int]:
        with self.connect() as conn:
            read = read_range(conn, "S", 1, 300, allow_lost=True, ask_copies=True, **options)
            return [record.seq for records in read for record in records]

    def refusal(self, **options: Any) -> str:
        """Why a read fails; nothing of one that does not, which is whole."""
        try:
            assert self.read(**options) == KEPT
        except Unreachable as error:
            return str(error)
        return ""

    def leads(self, name: str) -> bool:
        """Whether a server leads, which is asked for where another one does."""
        if self.info()["cluster"].get("leader") == name:
            return True
        with suppress(WireError), self.connect() as conn:  # another election may be under way
            conn.api("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": name}})
        return False

    def damage_leader(self, number: int) -> str:
        """Damage a block of the copy of the server that leads, by its number from 0, and make that server
        lead again; its name."""
        damaged = str(self.info()["cluster"]["leader"])
        self.servers[damaged].signal(signal.SIGKILL)
        blocks = (self.directory / damaged).glob("store/**/streams/S/msgs/*.blk")
        block = sorted(blocks, key=lambda path: int(path.stem))[number]
        with block.open("r+b") as file:
            file.write(b"\xff" * 64)
        block.with_name("index.db").unlink(missing_ok=True)
        self.servers[damaged].start()
        wait_for(self.whole, "three servers are current")
        wait_for(lambda: self.leads(damaged), "the server with the damaged copy leads")
        assert self.info()["state"]["messages"] < len(KEPT)
        return damaged


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PlainCluster]:
    """Of 300 messages 105, which follow on one another, are deleted; three servers are current."""
    found = PlainCluster(tmp_path)
    servers = found.servers.values()

    def made() -> bool:
        try:
            with found.connect() as conn:
                make_stream(conn, "S", num_replicas=3, discard="new", max_bytes=127_000)
        except WireError:  # the servers do not know each other yet
            return False
        return True

    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(PlainServer.start, servers))
        wait_for(made, "the stream is made")
        for subject, count in (("S.a", 194), ("S.gone", 105), ("S.a", 1)):
            fill(found.servers["a"], subject, [b"x" * 300] * count)
        with found.connect() as conn:
            conn.api("STREAM.PURGE.S", {"filter": "S.gone"})
        wait_for(found.whole, "three servers are current")
        yield found
    finally:
        for server in servers:
            server.stop()
